// The extra set by the kernel: its keys are those of a call of their own, and both calls meet under one denominator.
#pragma once

#include "cortado/primitives/window_attention/blocked.h"

namespace cortado::window {

// The extra set's call for inputs that have one. Keys that a mask hides lie before the visible ones, where the call's
// first_key (or, packed, its ranges) ends what is seen; a mask that differs between heads makes heads of batch rows.
class ExtraCall {
 public:
  // Whether there is such a call: a mask by heads of packed sequences has none.
  static bool possible(const BlockedInputs& all);
  explicit ExtraCall(const BlockedInputs& all);

  const BlockedInputs& inputs() const { return inputs_; }
  // [B,Tq,H,...] in the call's batch rows, and back.
  Tensor folded(const Tensor& x) const;
  Tensor unfolded(const Tensor& x) const;
  // The call's gradient of its keys or values as that of the tensor `given` to the operator.
  Tensor gradient(const Tensor& of_call, const Tensor& given) const;

 private:
  Tensor arranged(const Tensor& x, int64_t heads) const;

  int64_t mask_heads_ = 1;  // that have a batch row each
  Tensor order_;            // int64 [rows, E]: what lies where; undefined: as given
  BlockedInputs inputs_;
};

// Softmax over both sets of keys from the softmax over each, in place of the first's: float32, `all` contiguous.
void join_sets(BlockedOutputs& all, const BlockedOutputs& extra);

}  // namespace cortado::window
