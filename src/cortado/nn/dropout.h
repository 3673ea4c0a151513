// Dropout, which acts on embeddings and on what joins the residual stream.
#pragma once

#include <ATen/ATen.h>

namespace cortado {

// Zeroes entries with the given probability and scales the others by 1/(1 - probability); x itself when not training.
// Draws from torch's default generator.
inline at::Tensor drop(const at::Tensor& x, double probability, bool training) {
  return training && probability > 0.0 ? at::dropout(x, probability, true) : x;
}

}  // namespace cortado
