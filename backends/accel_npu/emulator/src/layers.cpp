// Layers that libtorch has no CPU kernel for in the form that CANN has them (declared in layers.h).
#include "layers.h"

#include <limits>

namespace emu {

std::vector<int64_t> channels(const at::Tensor& input) {
  std::vector<int64_t> dims;
  for (int64_t dim = 0; dim < input.dim(); dim++) if (dim != 1) dims.push_back(dim);
  return dims;
}

at::Tensor per_channel(const at::Tensor& values, const at::Tensor& input) {
  std::vector<int64_t> shape(input.dim(), 1);
  shape[1] = values.numel();
  return values.reshape(shape);
}

at::Tensor wide(const at::Tensor& value) {
  return value.defined() && at::isReducedFloatingType(value.scalar_type()) ? value.to(at::kFloat) : value;
}

void layer_norm_backward(at::Tensor grad, at::Tensor input, at::IntArrayRef shape, at::Tensor mean, at::Tensor rstd,
                         at::Tensor weight, at::Tensor bias, std::array<bool, 3> mask, at::Tensor grad_input,
                         at::Tensor grad_weight, at::Tensor grad_bias) {
  // CANN keeps the statistics of half-precision inputs in fp32, as libtorch does only for mixed weights.
  at::Tensor wide = input.to(at::kFloat);
  auto found = at::native_layer_norm_backward(grad.to(at::kFloat), wide, shape, mean.to(at::kFloat), rstd.to(at::kFloat),
                                              weight.to(at::kFloat), bias.to(at::kFloat), mask);
  if (mask[0]) store(grad_input, std::get<0>(found));
  if (mask[1]) store(grad_weight, std::get<1>(found));
  if (mask[2]) store(grad_bias, std::get<2>(found));
}

void gather_stats(at::Tensor sum, at::Tensor square_sum, at::Tensor count, at::Tensor running_mean,
                  at::Tensor running_var, double momentum, double eps, at::Tensor mean, at::Tensor invstd) {
  at::Tensor total = count.sum().to(sum.scalar_type());
  at::Tensor average = sum.sum(0) / total;
  at::Tensor variance = square_sum.sum(0) / total - average * average;
  store(mean, average);
  store(invstd, at::rsqrt(variance + eps));
  if (!running_mean.defined()) return;
  running_mean.mul_(1 - momentum).add_(average * momentum);
  running_var.mul_(1 - momentum).add_(variance * (total / (total - 1)) * momentum);
}

void gather_deviations(at::Tensor means, at::Tensor invstds, at::Tensor running_mean, at::Tensor running_var,
                       double momentum, double eps, at::Tensor counts, at::Tensor mean, at::Tensor invstd) {
  at::Tensor weights = counts.to(at::kFloat).reshape({-1, 1});
  at::Tensor spread = invstds.to(at::kFloat).pow(-2) - eps + means.to(at::kFloat).pow(2);
  gather_stats(means.to(at::kFloat) * weights, spread * weights, counts, running_mean, running_var, momentum, eps, mean,
               invstd);
}

at::Tensor normalized(at::Tensor input, at::Tensor mean, at::Tensor invstd, at::Tensor weight, at::Tensor bias) {
  at::Tensor value = (input.to(at::kFloat) - per_channel(mean, input)) * per_channel(invstd, input);
  if (weight.defined()) value = value * per_channel(weight, input);
  return bias.defined() ? value + per_channel(bias, input) : value;
}

at::Tensor normalized_backward(at::Tensor grad, at::Tensor input, at::Tensor mean, at::Tensor invstd, at::Tensor weight,
                               at::Tensor sum_dy, at::Tensor sum_dy_xmu, at::Tensor count) {
  at::Tensor total = count.sum().to(at::kFloat);
  at::Tensor centred = input.to(at::kFloat) - per_channel(mean, input);
  at::Tensor slope = per_channel(invstd * invstd * sum_dy_xmu / total, input);
  at::Tensor value = grad.to(at::kFloat) - per_channel(sum_dy / total, input) - centred * slope;
  value = value * per_channel(invstd, input);
  return weight.defined() ? value * per_channel(weight, input) : value;
}

namespace {

constexpr int64_t CAUSAL_FROM_LEFT = 2, CAUSAL_FROM_RIGHT = 3;  // sparse modes, whose mask is a compressed triangle

// Probabilities in fp32, before dropout. Only what torch_npu's scaled_dot_product_attention asks for.
at::Tensor probabilities(const at::Tensor& q, const at::Tensor& k, const Attention& options, at::Tensor* scores_out) {
  TORCH_CHECK(options.layout == "BNSD", "the emulator's attention takes input_layout BNSD, found ", options.layout);
  TORCH_CHECK(!options.shift.defined() && !options.padding.defined(), "the emulator's attention takes no pse, no padding mask");
  TORCH_CHECK(q.size(1) == k.size(1), "the emulator's attention takes as many key heads as query heads");
  at::Tensor scores = at::matmul(q.to(at::kFloat), k.to(at::kFloat).transpose(-2, -1)) * options.scale;
  int64_t rows = q.size(2), columns = k.size(2);
  at::Tensor hidden = options.mask;
  if (options.sparse == CAUSAL_FROM_LEFT || options.sparse == CAUSAL_FROM_RIGHT) {
    int64_t diagonal = 1 + (options.sparse == CAUSAL_FROM_RIGHT ? columns - rows : 0);
    hidden = at::ones({rows, columns}, at::kBool).triu(diagonal);
  }
  if (hidden.defined()) scores = scores.masked_fill(hidden.to(at::kBool), -std::numeric_limits<float>::infinity());
  *scores_out = scores;
  return at::softmax(scores, -1);
}

at::Tensor dropped(const at::Tensor& values, const Attention& options) {
  if (!options.drop.defined() || options.keep >= 1) return values;
  return values * read_mask(options.drop, values.sizes()).to(at::kFloat) / options.keep;
}

}  // namespace

void attention(at::Tensor q, at::Tensor k, at::Tensor v, const Attention& options, at::Tensor softmax_max,
               at::Tensor softmax_sum, at::Tensor out) {
  at::Tensor scores;
  at::Tensor weights = probabilities(q, k, options, &scores);
  store(out, at::matmul(dropped(weights, options), v.to(at::kFloat)));
  at::Tensor highest = scores.amax(-1, true);
  if (softmax_max.defined() && softmax_max.numel()) softmax_max.copy_(highest.expand(softmax_max.sizes()));
  if (softmax_sum.defined() && softmax_sum.numel()) {
    softmax_sum.copy_((scores - highest).exp().sum(-1, true).expand(softmax_sum.sizes()));
  }
}

void attention_backward(at::Tensor q, at::Tensor k, at::Tensor v, at::Tensor dy, const Attention& options, at::Tensor dq,
                        at::Tensor dk, at::Tensor dv) {
  at::Tensor scores, grad = dy.to(at::kFloat);
  at::Tensor weights = probabilities(q, k, options, &scores);
  store(dv, at::matmul(dropped(weights, options).transpose(-2, -1), grad));
  at::Tensor dweights = dropped(at::matmul(grad, v.to(at::kFloat).transpose(-2, -1)), options);
  at::Tensor dscores = weights * (dweights - (dweights * weights).sum(-1, true)) * options.scale;
  store(dq, at::matmul(dscores, k.to(at::kFloat)));
  store(dk, at::matmul(dscores.transpose(-2, -1), q.to(at::kFloat)));
}

}  // namespace emu
