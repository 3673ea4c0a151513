// A block-diagonal linear map: every head its own small matrix (the gates of the RG-LRU).
#pragma once

#include <torch/nn/module.h>

#include "cortado/base/error.h"
#include "cortado/nn/initialization.h"

namespace cortado {

// x [B, T, D] -> [B, T, D], channels in H blocks of D/H: y_h = x_h W_h + b_h. weight [H, D/H, D/H] (in, out),
// initialised N(0, H/D); bias [D], 0. D not divisible by H: InputError.
class BlockDiagonal : public torch::nn::Module {
 public:
  BlockDiagonal(int64_t dim, int64_t heads) : torch::nn::Module("BlockDiagonal"), heads_(heads) {
    fail_input_if(heads < 1 || dim % heads != 0, "[block_diagonal] width ", dim, " is not divisible by ", heads,
                  " blocks");
    const int64_t block = dim / heads;
    weight = register_parameter("weight", at::empty({heads, block, block}));
    lecun_normal(weight, block);
    bias = register_parameter("bias", at::zeros({dim}));
  }

  Tensor forward(const Tensor& x) const {
    const int64_t block = weight.size(1);
    const Tensor blocks = x.reshape({-1, heads_, block}).transpose(0, 1);
    const Tensor y = at::bmm(blocks, weight).transpose(0, 1).reshape(x.sizes());
    return y + bias;
  }

  Tensor weight;
  Tensor bias;

 private:
  int64_t heads_;
};

}  // namespace cortado
