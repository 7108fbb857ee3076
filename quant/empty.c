typedef int quant_placeholder;
