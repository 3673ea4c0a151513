#include "cortado/models/pretrained/gguf_rope.h"

namespace cortado {

RotaryScaling GgufRope::scaling() const {
  // As llama.cpp: a factor without a type is linear, and so is "scale_linear" of its first files.
  const double early = metadata.number(key("rope.scale_linear"), 0.0, 1e9, 0.0);
  const double factor = metadata.number(key("rope.scaling.factor"), 0.0, 1e9, early);
  const std::string type = metadata.text(key("rope.scaling.type"), factor > 0 ? "linear" : "none");
  file.fail_if(type != "none" && type != "linear" && type != "yarn" && type != "longrope",
               "has rotary positions of type ", printable(type),
               ", which is not supported; supported: none, linear, yarn, longrope");
  file.fail_if(type == "longrope" && !file.find(kLongFactors), "has no tensor \"", kLongFactors, "\"");
  file.fail_if(type == "longrope" && factor != 0 && factor != 1, "has \"", key("rope.scaling.factor"),
               "\" besides longrope's factors, which is not supported");
  RotaryScaling scaling;
  if (factor == 0 || factor == 1 || type == "none") return scaling;
  scaling.factor = factor;
  scaling.type = type == "yarn" ? RotaryScaling::Type::kYarn : RotaryScaling::Type::kLinear;
  if (type == "yarn") read_yarn(scaling);
  scaling.check(metadata);
  return scaling;
}

// As llama.cpp: the attention factor of the file multiplies yarn's own.
void GgufRope::read_yarn(RotaryScaling& scaling) const {
  scaling.original_context = original_context(1);
  scaling.beta_fast = metadata.number(key("rope.scaling.yarn_beta_fast"), 1e-9, 1e9, scaling.beta_fast);
  scaling.beta_slow = metadata.number(key("rope.scaling.yarn_beta_slow"), 1e-9, 1e9, scaling.beta_slow);
  scaling.attention_factor = yarn_attention_factor(scaling.factor) * attention_factor();
  for (const auto& [name, neutral] : {std::pair("rope.scaling.yarn_ext_factor", 1.0),
                                      {"rope.scaling.yarn_attn_factor", 1.0},
                                      {"rope.scaling.yarn_log_multiplier", 0.0}}) {
    const double said = metadata.number(key(name), -1e9, 1e9, neutral);
    file.fail_if(said != neutral, "has \"", key(name), "\" ", said, ", which is not supported; supported: ", neutral);
  }
}

int64_t GgufRope::original_context(int64_t least) const {
  const std::string name = key("rope.scaling.original_context_length");
  const int64_t length = metadata.integer(name, 0, int64_t{1} << 40, context);
  file.fail_if(length < least, "lacks \"", name, "\", ", least, " or more");
  return length;
}

}  // namespace cortado
