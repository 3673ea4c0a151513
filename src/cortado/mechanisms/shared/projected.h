// What the mixers with one query, key and value a token share: projections, grouped heads, rotary positions.
#pragma once

#include "cortado/mechanisms/shared/heads.h"

namespace cortado {

struct ProjectionSettings {
  int64_t heads, kv_heads, head_dim;
  std::optional<Rotary> rotary;            // none: no rotary positions
  std::optional<int64_t> rotary_dim = {};  // channels of a head that are rotated, the first ones; none: all
  bool bias = false;                       // of q, k and v
  bool output_bias = false;                // of o

  // {"heads", "kv_heads", "head_dim", "rotary", "rope_theta", "rope_scaling", "rotary_fraction", "bias", "output_bias"}
  static ProjectionSettings read(JsonReader& settings, const MixerContext& context);

  int64_t width() const { return heads * head_dim; }
  int64_t kv_width() const { return kv_heads * head_dim; }
};

// Query head i goes with key head i·Hkv/H.
class ProjectedMixer : public Mixer {
 protected:
  ProjectedMixer(std::string name, const ProjectionSettings& settings, int64_t dim);

  struct Projected {
    Tensor q, k, v;  // [B,T,H,d], [B,T,Hkv,d] twice; q and k rotated
  };
  Projected project(const Tensor& x, const Tensor& positions) const { return project(x, positions, *q_, *k_, *v_); }
  // By other maps of the same sizes.
  Projected project(const Tensor& x, const Tensor& positions, const Linear& q, const Linear& k, const Linear& v) const;
  Tensor output(const Tensor& mixed) const { return o_->forward(merge_heads(mixed)); }

  // [Hkv, d], a key or a value.
  std::vector<int64_t> pair_shape() const { return {projections_.kv_heads, projections_.head_dim}; }
  // "keys" and "values".
  void declare_ring(StateLayout& layout, const StateLayout::Places& places) const;

 private:
  ProjectionSettings projections_;
  std::shared_ptr<Linear> q_, k_, v_, o_;
};

}  // namespace cortado
