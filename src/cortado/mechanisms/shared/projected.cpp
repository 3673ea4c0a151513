#include "cortado/mechanisms/shared/projected.h"

#include "cortado/nn/rotary.h"

namespace cortado {

ProjectionSettings ProjectionSettings::read(JsonReader& settings, const MixerContext& context) {
  ProjectionSettings read{};
  read.heads = settings.integer("heads", 1, 65536, context.heads);
  read.kv_heads = settings.integer("kv_heads", 1, 65536, read.heads);
  if (read.heads % read.kv_heads != 0) {
    settings.fail(concat("heads (", read.heads, ") is not a multiple of kv_heads (", read.kv_heads, ")"));
  }
  if (!settings.has("head_dim") && context.dim % read.heads != 0) {
    settings.fail(concat("dim (", context.dim, ") is not divisible by heads (", read.heads, ")"));
  }
  read.head_dim = settings.integer("head_dim", 1, 65536, std::max<int64_t>(1, context.dim / read.heads));
  const double fraction = settings.number("rotary_fraction", 0.0, 1.0, 1.0);
  read.rotary_dim = static_cast<int64_t>(fraction * static_cast<double>(read.head_dim));
  read.rotary = read_rotary(settings, context, read.head_dim, context.rotary, *read.rotary_dim);
  if (read.rotary && (*read.rotary_dim < 2 || *read.rotary_dim % 2 != 0)) {
    settings.fail(concat("rotary_fraction ", fraction, " of head_dim (", read.head_dim, ") is ", *read.rotary_dim,
                         " channels, which cannot be turned in pairs"));
  }
  read.bias = settings.boolean("bias", false);
  read.output_bias = settings.boolean("output_bias", read.bias);
  return read;
}

ProjectedMixer::ProjectedMixer(std::string name, const ProjectionSettings& settings, int64_t dim)
    : Mixer(std::move(name)), projections_(settings) {
  q_ = register_module("q", std::make_shared<Linear>(dim, settings.width(), settings.bias));
  k_ = register_module("k", std::make_shared<Linear>(dim, settings.kv_width(), settings.bias));
  v_ = register_module("v", std::make_shared<Linear>(dim, settings.kv_width(), settings.bias));
  o_ = register_module("o", make_output_linear(settings.width(), dim, settings.output_bias));
}

ProjectedMixer::Projected ProjectedMixer::project(const Tensor& x, const Tensor& positions, const Linear& q,
                                                  const Linear& k, const Linear& v) const {
  const auto all = forward_all(x, {&q, &k, &v});
  Projected p{split_heads(all[0], projections_.heads), split_heads(all[1], projections_.kv_heads),
              split_heads(all[2], projections_.kv_heads)};
  rotate_queries_and_keys(p.q, p.k, positions, projections_.rotary, projections_.rotary_dim);
  return p;
}

void ProjectedMixer::declare_ring(StateLayout& layout, const StateLayout::Places& places) const {
  for (const char* name : {"keys", "values"}) layout.ring(name, pair_shape(), places);
}

}  // namespace cortado
