// Phi-3 of transformers: a Llama whose maps to queries, keys and values are one tensor, and so are gate and up.
#include "cortado/models/pretrained/decoders.h"

namespace cortado {
namespace {

void read_phi3(JsonReader& config, PretrainedDecoder& decoder) {
  expect_activation(config, "silu");
  read_decoder_sizes(config, decoder, {.norm_eps = 1e-5});
  const PretrainedRope rope = read_rope(config);
  decoder.attention.rotary = Rotary{rope.theta, rope.scaling};
  decoder.rotary_fraction = rope.fraction;
  const auto window = config.optional_integer("sliding_window", 1, 1 << 30);
  read_windows(config, decoder, window, [](int64_t) { return true; });
}

struct JointPart {
  std::string name;
  int64_t rows;
};

// Replaces the tensor `name` by its parts, which are consecutive rows and whose names begin with `within`.
void split_joint(const PretrainedDecoder& decoder, std::map<std::string, Tensor>& tensors, const std::string& name,
                 const std::string& within, const std::vector<JointPart>& parts) {
  const auto found = tensors.find(name);
  fail_input_if(found == tensors.end(), "[import] ", decoder.source, ": there is no tensor \"", name, "\"");
  const Tensor joint = found->second;
  int64_t rows = 0;
  for (const JointPart& part : parts) rows += part.rows;
  fail_input_if(joint.dim() != 2 || joint.size(0) != rows, "[import] ", decoder.source, ": tensor \"", name, "\" is ",
                joint.sizes(), ", expected ", rows, " rows");
  int64_t begin = 0;
  for (const JointPart& part : parts) {
    tensors[within + part.name] = joint.narrow(0, begin, part.rows);
    begin += part.rows;
  }
  tensors.erase(name);
}

void split_all_joint(const PretrainedDecoder& decoder, std::map<std::string, Tensor>& tensors) {
  const int64_t width = decoder.attention.width(), kv_width = decoder.attention.kv_width();
  const int64_t hidden = decoder.model.feed_forward.dim;
  for (int64_t i = 0; i < decoder.layers(); ++i) {
    const std::string attention = concat("model.layers.", i, ".self_attn."), mlp = concat("model.layers.", i, ".mlp.");
    split_joint(decoder, tensors, attention + "qkv_proj.weight", attention,
                {{"q_proj.weight", width}, {"k_proj.weight", kv_width}, {"v_proj.weight", kv_width}});
    split_joint(decoder, tensors, mlp + "gate_up_proj.weight", mlp,
                {{"gate_proj.weight", hidden}, {"up_proj.weight", hidden}});
  }
}

}  // namespace

std::vector<DecoderFamily> phi3_families() { return {{"phi3", read_phi3, split_all_joint}}; }

}  // namespace cortado
