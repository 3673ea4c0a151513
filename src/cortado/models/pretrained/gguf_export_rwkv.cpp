// GGUF files of RWKV-6 and RWKV-7, whose time mixing and channel mixing are layers of their own here.
#include "cortado/models/pretrained/gguf_export_parts.h"

namespace cortado {
namespace {

void put_rwkv(RenamedFile& made) {
  const ModelConfig& ours = made.ours;
  expect_in_llama_cpp(ours.feed_forward.kind == FeedForwardKind::kNone, "feed-forward in layers of RWKV alone");
  expect_in_llama_cpp(!ours.tied, concat("head of ", made.file.architecture, " that is the embedding"));
  expect_in_llama_cpp(ours.layers.size() % 2 == 0, "layer of time mixing without one of channel mixing");
  const int64_t heads = whole_of(ours.layers[0], "heads", ours.heads);
  made.config.update({{"model_type", made.file.architecture},
                      {"num_hidden_layers", ours.layers.size() / 2},
                      {"num_heads", heads},
                      {"norm_first", true},
                      {"intermediate_size", whole_of(ours.layers[1], "hidden", 4 * ours.dim)}});
  made.layout.head_norm_eps = kRwkvHeadNormEps;
  made.file.put_number("attention.layer_norm_epsilon", ours.norm_eps);
  made.file.put_whole("attention.head_count", 0);
  made.file.put_whole("token_shift_count", 2);
}

}  // namespace

void describe_rwkv6(RenamedFile& made) {
  put_rwkv(made);
  const Json& mixer = made.ours.layers[0];
  const int64_t dim = made.ours.dim;
  expect_in_llama_cpp(whole_of(mixer, "key_dim", dim) == dim && whole_of(mixer, "value_dim", dim) == dim,
                      "rwkv6 layers whose keys or values have another width than the model");
  made.config.update({{"expand_k", 1.0},
                      {"expand_v", 1.0},
                      {"proj_low_rank_dim", whole_of(mixer, "mix_rank", 32)},
                      {"gate_low_rank_dim", whole_of(mixer, "decay_rank", 64)}});
  made.put(kRwkv6Names);
  made.file.put_whole("wkv.head_size", dim / made.config["num_heads"].get<int64_t>());
}

// Ranks that our config does not say are those that the folder's reader chooses by the width.
void describe_rwkv7(RenamedFile& made) {
  put_rwkv(made);
  const Json& mixer = made.ours.layers[0];
  expect_in_llama_cpp(whole_of(mixer, "value_rank", 1) > 0, "rwkv7 layers that keep their own values");
  const std::pair<const char*, const char*> ranks[] = {{"decay_rank", "decay_low_rank_dim"},
                                                       {"rate_rank", "a_low_rank_dim"},
                                                       {"value_rank", "v_low_rank_dim"},
                                                       {"gate_rank", "gate_low_rank_dim"}};
  for (const auto& [key, theirs] : ranks) made.config[theirs] = mixer.contains(key) ? mixer[key] : Json();
  const int64_t head = made.ours.dim / made.config["num_heads"].get<int64_t>();
  expect_in_llama_cpp(head % 64 == 0,
                      concat("rwkv7 layers with heads of ", head, " channels, only of multiples of 64"));
  made.config["head_dim"] = head;
  const Json read = gguf_folder_model(made.config, made.layout, "llama.cpp's rwkv7").config.layers[0];
  for (const auto& [key, theirs] : ranks) made.config[theirs] = read.at(key);
  made.put(kRwkv7Names);
  // llama.cpp reads a map of values in the first block too, of the rank of another one, and does not use it.
  const int64_t dim = made.ours.dim, rank = read.at("rate_rank");
  for (const auto& [part, shape] : {std::pair("v0", Shape{dim}), {"v1", Shape{rank, dim}}, {"v2", Shape{dim, rank}}}) {
    made.more.push_back({concat("blk.0.time_mix_", part, ".weight"), shape,
                         [size = shape](const ModelWeights&) { return at::zeros(size, at::kFloat); }});
  }
}

}  // namespace cortado
