# tests/jobs/case_quantize_activations_slow.sh - perplexities with activations and caches as calibrated here, against those of
# ModelOpt's exports.
part=activations
. "$SOURCE/tests/support/quantize_perplexity.sh"
