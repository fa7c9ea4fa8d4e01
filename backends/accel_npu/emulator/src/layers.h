// Layers that libtorch has no CPU kernel for in the form that CANN has them.
#pragma once
#include "ops.h"

namespace emu {

// All dimensions but the second, over which a channel's statistics are taken; a channel's values, shaped to broadcast.
std::vector<int64_t> channels(const at::Tensor& input);
at::Tensor per_channel(const at::Tensor& values, const at::Tensor& input);

// Half precision as fp32: the cube unit multiplies halves and adds in fp32, rounding once, which `store` does. libtorch's
// own half kernels differ from that by CPU, and are ten times slower on one without half instructions.
at::Tensor wide(const at::Tensor& value);

void layer_norm_backward(at::Tensor grad, at::Tensor input, at::IntArrayRef shape, at::Tensor mean, at::Tensor rstd,
                         at::Tensor weight, at::Tensor bias, std::array<bool, 3> mask, at::Tensor grad_input,
                         at::Tensor grad_weight, at::Tensor grad_bias);

// SyncBatchNorm; formulas of the operator documents in ops-nn, norm/sync_batch_norm_*.
void gather_stats(at::Tensor sum, at::Tensor square_sum, at::Tensor count, at::Tensor running_mean,
                  at::Tensor running_var, double momentum, double eps, at::Tensor mean, at::Tensor invstd);
// The same from each rank's mean and inverse deviation.
void gather_deviations(at::Tensor means, at::Tensor invstds, at::Tensor running_mean, at::Tensor running_var,
                       double momentum, double eps, at::Tensor counts, at::Tensor mean, at::Tensor invstd);
at::Tensor normalized(at::Tensor input, at::Tensor mean, at::Tensor invstd, at::Tensor weight, at::Tensor bias);
at::Tensor normalized_backward(at::Tensor grad, at::Tensor input, at::Tensor mean, at::Tensor invstd, at::Tensor weight,
                               at::Tensor sum_dy, at::Tensor sum_dy_xmu, at::Tensor count);

struct Attention {
  at::Tensor shift, drop, padding, mask;
  double scale, keep;
  std::string layout;
  int64_t sparse;
};
void attention(at::Tensor q, at::Tensor k, at::Tensor v, const Attention& options, at::Tensor softmax_max,
               at::Tensor softmax_sum, at::Tensor out);
void attention_backward(at::Tensor q, at::Tensor k, at::Tensor v, at::Tensor dy, const Attention& options, at::Tensor dq,
                        at::Tensor dk, at::Tensor dv);

}  // namespace emu
