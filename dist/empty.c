typedef int dist_placeholder;
