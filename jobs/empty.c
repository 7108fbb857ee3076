typedef int jobs_placeholder;
