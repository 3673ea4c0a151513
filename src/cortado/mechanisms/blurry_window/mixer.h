// blurry_window: Blurry Window Attention, softmax over N slots that interpolate the keys and values of a period of P
// tokens.
#pragma once

#include "cortado/mechanisms/blurry_window/op.h"
#include "cortado/mechanisms/mechanism.h"
#include "cortado/mechanisms/shared/projected.h"

namespace cortado {

extern const Mechanism kBlurryWindow;
OperatorCase blurry_case();

struct BlurrySettings {
  int64_t heads;
  BlurrySizes sizes;
  bool decay;
  std::optional<Rotary> rotary;  // none: no rotary positions
};

// State: "key_state", "value_state" [rows,H,N,d] and "position" [rows].
class BlurryWindowMixer : public ProjectedMixer {
 public:
  BlurryWindowMixer(const BlurrySettings& settings, int64_t dim);

  Tensor reference(const Tensor& x) override;
  StateLayout state_layout() const override;
  double flops_per_token(int64_t tokens) const override;

 private:
  Tensor mix(const Tensor& x, const Batch& batch, SequenceState* state) override;

  BlurrySettings settings_;
  int64_t head_dim_;
  Tensor table_;  // one period of w, [P,N] float64; not a parameter: it follows from the settings
};

}  // namespace cortado
