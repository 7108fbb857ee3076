# tests/jobs/case_quantize_perplexity_slow.sh - perplexities of quantized weights against those of ModelOpt's exports.
part=weights
. "$SOURCE/tests/support/quantize_perplexity.sh"
