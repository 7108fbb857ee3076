typedef int model_placeholder;
