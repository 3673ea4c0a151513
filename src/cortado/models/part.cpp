#include "cortado/models/part.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <set>

#include "cortado/base/error.h"
#include "cortado/mechanisms/registry.h"
#include "cortado/nn/autocast.h"
#include "cortado/nn/dtype.h"
#include "cortado/nn/initialization.h"
#include "cortado/nn/matrix.h"
#include "cortado/nn/weights.h"
#include "cortado/nn/wide.h"
#include "cortado/primitives/common.h"
#include "cortado/primitives/cuda/tensors.h"

namespace cortado {
namespace {

MixerContext read_context(JsonReader& json) {
  MixerContext context;
  context.dim = json.integer("dim", 1, int64_t{1} << 20);
  context.heads = json.integer("heads", 1, int64_t{1} << 16, 1);
  context.layers = json.integer("layers", 1, int64_t{1} << 16, 1);
  context.layer = json.integer("layer", 0, context.layers - 1, 0);
  context.causal = json.boolean("causal", true);
  context.rotary = json.boolean("rotary", false);
  context.rope_theta = json.number("rope_theta", 1, 1e12, context.rope_theta);
  const Json scaling = json.object("rope_scaling");
  if (!scaling.empty()) context.rope_scaling = RotaryScaling::from_json(scaling, "mixer.rope_scaling");
  return context;
}

// Checks x [B,T,width].
void check_numbers(const Tensor& x, int64_t width) {
  fail_input_if(!x.is_floating_point(), "[part] expected floating-point numbers, got ", x.scalar_type());
  expect_shape("part", "x", x, {-1, -1, width});
}

// Checks tokens or targets [B,T].
void check_tokens(const char* name, const Tensor& x) {
  const bool whole = x.scalar_type() == at::kLong || x.scalar_type() == at::kInt;
  fail_input_if(!whole, "[part] ", name, " must be int64 or int32, got ", x.scalar_type());
  expect_shape("part", name, x, {-1, -1});
}

class MixerPart : public Part {
 public:
  explicit MixerPart(JsonReader& json) {
    const MixerContext context = read_context(json);
    mixer_ = make_mixer(json.object("settings"), context, "mixer");
    width_ = context.dim;
  }
  void check(const std::vector<Tensor>& inputs) const override { check_numbers(inputs[0], width_); }
  const torch::nn::Module& module() const override { return *mixer_; }
  StateLayout state_layout() const override { return mixer_->state_layout(); }
  std::string state_name() const override { return mixer_->name(); }
  Tensor forward(const std::vector<Tensor>& inputs, const Batch& batch, SequenceState* state) override {
    return mixer_->forward(inputs[0], batch, state);
  }

 private:
  std::shared_ptr<Mixer> mixer_;
  int64_t width_;
};

class BlockPart : public Part {
 public:
  explicit BlockPart(JsonReader& json) {
    const auto config = ModelConfig::from_json(json.object("config"), "config");
    const auto last = static_cast<int64_t>(config.layers.size()) - 1;
    block_ = std::make_shared<Block>(config, json.integer("layer", 0, last));
    draws_ = config.dropout > 0;
    width_ = config.dim;
  }
  void check(const std::vector<Tensor>& inputs) const override {
    const Tensor& x = inputs[0];
    check_numbers(x, x.dim() == 3 && x.size(2) == 2 * width_ ? 2 * width_ : width_);
  }
  const torch::nn::Module& module() const override { return *block_; }
  StateLayout state_layout() const override { return block_->mixer()->state_layout(); }
  std::string state_name() const override { return block_->mixer()->name(); }
  Tensor forward(const std::vector<Tensor>& inputs, const Batch& batch, SequenceState* state) override {
    const Tensor& x = inputs[0];
    Tensor values = x.size(2) > width_ ? x.narrow(2, width_, width_) : Tensor();
    Batch pass = batch;
    pass.first_values = &values;
    const Tensor y = block_->forward(x.narrow(2, 0, width_), pass, state);
    return values.defined() ? at::cat({y, values}, 2) : y;
  }
  int64_t width_after(int64_t width) const override { return block_->mixer()->shares_values() ? 2 * width_ : width; }
  bool draws() const override { return draws_; }

 private:
  std::shared_ptr<Block> block_;
  bool draws_;
  int64_t width_;
};

// The part of a language model before its first block and after its last.
class Ends : public LanguageModel {
 public:
  explicit Ends(ModelConfig config) : LanguageModel(without_layers(std::move(config))) {}

  Tensor embed(const Tensor& tokens, const Batch& batch, SequenceState* state) const {
    ModelState position;
    if (state) position.position = state->at(StateLayout::kPosition);
    const Tensor x = LanguageModel::embed(tokens, batch, state ? &position : nullptr);
    if (state) state->at(StateLayout::kPosition) = position.position + batch.lengths(tokens);
    return x;
  }

 private:
  static ModelConfig without_layers(ModelConfig config) {
    config.layers.clear();
    return config;
  }
};

class EndsPart : public Part {
 public:
  EndsPart(JsonReader& json, std::string kind)
      : kind_(std::move(kind)), ends_(std::make_shared<Ends>(ModelConfig::from_json(json.object("config"), "config"))) {
    inputs = kind_ == "loss" ? 2 : 1;
  }
  const torch::nn::Module& module() const override { return *ends_; }
  StateLayout state_layout() const override {
    StateLayout layout;
    if (kind_ == "embedding" && ends_->config().causal) layout.position();
    return layout;
  }
  void check(const std::vector<Tensor>& inputs) const override {
    if (kind_ == "embedding") return check_tokens("tokens", inputs[0]);
    check_numbers(inputs[0], ends_->config().dim);
    if (kind_ == "loss") check_tokens("targets", inputs[1]);
  }
  Tensor forward(const std::vector<Tensor>& inputs, const Batch& batch, SequenceState* state) override {
    if (kind_ == "embedding") return ends_->embed(inputs[0], batch, state);
    Tensor x = ends_->normalize(inputs[0]);
    if (kind_ == "norm") return x;
    return kind_ == "logits" ? ends_->logits(x) : ends_->loss_of(x, inputs[1]);
  }
  bool draws() const override { return kind_ == "embedding" && ends_->config().dropout > 0; }

 private:
  std::string kind_;
  std::shared_ptr<Ends> ends_;
};

// The input type of a shell's zero state. Sums never have it, so tensors of this type are caches.
constexpr auto kZeroType = at::kHalf;

// A part whose weights have shapes but no memory; one call at a time uses it.
struct Shell {
  std::unique_ptr<Part> part;
  std::vector<Tensor*> places;
  std::map<std::string, MatrixModule*> maps;  // linear maps and embeddings, by name
  SequenceState zero;  // with no rows, for inputs of kZeroType; gives the names and types of the state's tensors
};

// Tensors made while one exists are real even under tracing, which would make tensors without memory.
class Untraced {
 public:
  Untraced() : guard_(c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot})) {}

 private:
  c10::impl::ExcludeDispatchKeyGuard guard_;
};

Shell make_shell(const std::string& text) {
  const Untraced untraced;  // the shell outlives any tracing
  const KeptGenerator kept;
  const SkipInitialization skip;
  Shell shell{.part = Part::make(text), .places = {}, .maps = {}, .zero = {}};
  shell.places = weight_places(shell.part->module());
  for (Tensor* place : shell.places) *place = at::empty_like(*place, place->options().device(at::kMeta));
  for (const auto& module : shell.part->module().named_modules()) {
    if (auto* map = dynamic_cast<MatrixModule*>(module.value().get())) shell.maps[module.key()] = map;
  }
  shell.zero = shell.part->state_layout().zeros(shell.part->state_name(), 0, kZeroType);
  return shell;
}

// Shells that are not in use, of the texts used last. One takes a few hundred bytes per weight.
class Shells {
 public:
  static std::unique_ptr<Shell> take(const std::string& text) {
    {
      const std::lock_guard lock(mutex());
      const auto found = all().find(text);
      if (found != all().end() && !found->second.shells.empty()) {
        auto shell = std::move(found->second.shells.back());
        found->second.shells.pop_back();
        return shell;
      }
    }
    return std::make_unique<Shell>(make_shell(text));
  }
  static void give_back(const std::string& text, std::unique_ptr<Shell> shell) {
    static uint64_t uses = 0;
    const std::lock_guard lock(mutex());
    Idle& idle = all()[text];
    idle.shells.push_back(std::move(shell));
    idle.used = ++uses;
    if (all().size() <= kMostTexts) return;
    const auto earlier = [](const auto& a, const auto& b) { return a.second.used < b.second.used; };
    all().erase(std::min_element(all().begin(), all().end(), earlier));
  }

 private:
  static constexpr size_t kMostTexts = 1024;  // more than the parts of any model

  struct Idle {
    std::vector<std::unique_ptr<Shell>> shells;
    uint64_t used = 0;  // when, among all uses
  };

  static std::mutex& mutex() {
    static std::mutex one;
    return one;
  }
  static std::map<std::string, Idle>& all() {
    static auto* map = new std::map<std::string, Idle>;  // outlives all threads
    return *map;
  }
};

// Replaces some maps by the caller's functions for the time of a call.
class Replaced {
 public:
  Replaced(const Shell& shell, const PartCall& call) {
    for (const std::string& name : call.called) {
      const auto found = shell.maps.find(name);
      fail_input_if(found == shell.maps.end(), "[part] no linear map or embedding is called ", name);
      maps_.push_back(found->second);
    }
    for (size_t i = 0; i < maps_.size(); ++i) {
      maps_[i]->compute_by([&call, &name = call.called[i]](const Tensor& x) { return call.inner(name, x); });
    }
  }
  ~Replaced() {
    for (MatrixModule* map : maps_) map->compute_by({});
  }
  Replaced(const Replaced&) = delete;
  Replaced& operator=(const Replaced&) = delete;

 private:
  std::vector<MatrixModule*> maps_;
};

// Matrix products need equal types, so the input's type must be that of a weight. Autocast converts everything except
// float64.
void check_types(const PartCall& call) {
  const Tensor& x = call.inputs[0];
  // kept by a module that is called instead
  const auto elsewhere = [](const Tensor& weight) { return weight.numel() == 0; };
  if (!x.is_floating_point() || std::any_of(call.weights.begin(), call.weights.end(), elsewhere)) return;
  const bool casts = !call.autocast.empty() || at::autocast::is_autocast_enabled(x.device().type());
  const auto meets = [&](at::ScalarType type) {
    return type == x.scalar_type() || (casts && type != at::kDouble && x.scalar_type() != at::kDouble);
  };
  std::set<at::ScalarType> types;
  for (const Tensor& weight : call.weights) types.insert(weight.scalar_type());
  // Parts with weights of 16 and 32 bits are right beside either input. float64 mixes with nothing.
  const auto mixes = [&](at::ScalarType type) { return (type == at::kDouble) != (x.scalar_type() == at::kDouble); };
  const bool any_meets = std::any_of(types.begin(), types.end(), meets);
  if (types.empty() || (any_meets && std::none_of(types.begin(), types.end(), mixes))) return;
  std::string names;
  for (const auto type : types) names += concat(names.empty() ? "" : " and ", type);
  throw InputError(concat("[part] the input is ", x.scalar_type(), ", the weights are ", names,
                          ": bring them to one type, or use autocast for those of 16 and 32 bits"));
}

void check_call(const PartCall& call, const Shell& shell) {
  const auto weights = named_weights(shell.part->module());
  fail_input_if(call.weights.size() != weights.size(), "[part] expected ", weights.size(), " weights, got ",
                call.weights.size());
  const auto is_called = [&](const std::string& weight) {
    const std::string module = weight.substr(0, weight.find_last_of('.'));
    return std::find(call.called.begin(), call.called.end(), module) != call.called.end();
  };
  for (size_t i = 0; i < weights.size(); ++i) {
    const Tensor& given = call.weights[i];
    if (given.numel() == 0 && is_called(weights[i].key())) continue;  // the module in its place keeps its own weight
    fail_input_if(given.sizes() != shell.places[i]->sizes() || !given.is_floating_point(), "[part] expected ",
                  weights[i].key(), " of the shape ", shell.places[i]->sizes(), ", got ", given.scalar_type(), " ",
                  given.sizes());
  }
  fail_input_if(call.inputs.size() != shell.part->inputs, "[part] expected ", shell.part->inputs, " inputs, got ",
                call.inputs.size());
  shell.part->check(call.inputs);
  for (const auto* tensors : {&call.weights, &call.inputs, &call.state}) {
    for (const Tensor& x : *tensors) {
      if (tensors == &call.weights && x.numel() == 0) continue;  // of a module that is called instead
      fail_input_if(x.layout() != at::kStrided || x.device() != call.inputs[0].device(),
                    "[part] expected dense tensors on one device, got ", x.layout(), " on ", x.device(), " beside ",
                    call.inputs[0].device());
    }
  }
  check_types(call);
  const Tensor& x = call.inputs[0];
  packed_rows("part", call.cu_seqlens, x.size(0));
  const bool readable = call.cu_seqlens && call.cu_seqlens->is_cpu() && cuda::has_numbers(*call.cu_seqlens);
  if (readable) sequence_bounds("part", *call.cu_seqlens, x.size(1));
}

// The type of a state's tensor beside inputs of this type: wide for sums, the input's for caches.
at::ScalarType expected_type(const Tensor& own, at::ScalarType input) {
  if (!own.is_floating_point()) return at::kLong;
  return own.scalar_type() == kZeroType ? input : wide_type(input);
}

// Whether x may be the state's tensor `own`. A cache may have another type than the input, as autocast leaves it, but
// float64 does not mix with others.
bool fits(const Tensor& x, const Tensor& own, at::ScalarType input) {
  if (!own.is_floating_point()) return at::isIntegralType(x.scalar_type(), /*includeBool=*/false);
  if (own.scalar_type() != kZeroType) return x.scalar_type() == wide_type(input);
  return x.is_floating_point() && (x.scalar_type() == at::kDouble) == (input == at::kDouble);
}

// Builds the part's state from the call's tensors. Growing caches are trimmed, so that new entries go into new memory:
// the caller may continue from the given state again.
SequenceState state_of(const PartCall& call, const Shell& shell) {
  const auto& names = shell.zero.tensors();
  fail_input_if(names.empty(), "[part] ", shell.zero.mechanism(), " has no state: it reads whole sequences");
  fail_input_if(call.state.size() != names.size(), "[part] the state of ", shell.zero.mechanism(), " has ",
                names.size(), " tensors, got ", call.state.size());
  SequenceState state(shell.zero.mechanism());
  for (size_t i = 0; i < names.size(); ++i) state.add(names[i].first, call.state[i]);
  const StateLayout layout = shell.part->state_layout();
  layout.check(state, "[state]");
  for (size_t i = 0; i < names.size(); ++i) {
    const Tensor &x = call.state[i], &own = names[i].second;
    fail_input_if(x.size(0) != call.state[0].size(0) || !fits(x, own, call.inputs[0].scalar_type()), "[state] \"",
                  names[i].first, "\" is ", x.scalar_type(), " ", x.sizes(), ", expected ", call.state[0].size(0),
                  " rows of ", expected_type(own, call.inputs[0].scalar_type()));
  }
  const Batch batch{.cu_seqlens = call.cu_seqlens, .training = false};
  fail_input_if(state.rows() != batch.rows(call.inputs[0]), "[state] the state has ", state.rows(), " rows, the batch ",
                batch.rows(call.inputs[0]));
  return layout.trimmed(state);
}

bool within(const Tensor& x, const std::vector<Tensor>& others) {
  return std::any_of(others.begin(), others.end(), [&](const Tensor& other) { return x.is_alias_of(other); });
}

}  // namespace

std::unique_ptr<Part> Part::make(const std::string& text) {
  JsonReader json(parse_json(text, "part"), "part");
  const std::string kind = json.choice("part", {"mixer", "block", "embedding", "norm", "logits", "loss"});
  std::unique_ptr<Part> part;
  if (kind == "mixer") {
    part = std::make_unique<MixerPart>(json);
  } else if (kind == "block") {
    part = std::make_unique<BlockPart>(json);
  } else {
    part = std::make_unique<EndsPart>(json, kind);
  }
  json.finish();
  return part;
}

std::vector<Tensor> run_part(const PartCall& call) {
  auto shell = Shells::take(call.part);
  check_call(call, *shell);
  SequenceState state;
  const bool stateful = !call.state.empty();
  if (stateful) state = state_of(call, *shell);
  std::vector<Tensor> results;
  {
    const Borrowed borrowed(shell->places, call.weights);
    const Replaced replaced(*shell, call);
    const auto type = call.autocast.empty() ? at::kFloat : dtype_of(call.autocast);
    const Autocast autocast(call.inputs[0].device(), type);
    const Batch batch{.cu_seqlens = call.cu_seqlens, .training = call.training};
    results.push_back(shell->part->forward(call.inputs, batch, stateful ? &state : nullptr));
    // The mixer's output in autocast's type, as torch's linear layer gives it.
    if (!call.autocast.empty() && dynamic_cast<MixerPart*>(shell->part.get())) results[0] = results[0].to(type);
  }
  if (stateful) state = shell->part->state_layout().trimmed(state);
  Shells::give_back(call.part, std::move(shell));
  // Without a growing cache's spare memory: tracing must know the strides.
  for (const auto& [name, tensor] : state.tensors()) results.push_back(tensor.contiguous());
  for (Tensor& result : results) {
    if (within(result, call.inputs) || within(result, call.state)) result = result.clone();
  }
  return results;
}

std::vector<Tensor> part_zero_state(const std::string& part, int64_t rows, const Tensor& like) {
  fail_input_if(rows < 0 || rows > kMostPartRows, "[state] expected 0..", kMostPartRows, " rows, got ", rows);
  auto shell = Shells::take(part);
  const auto zero = shell->part->state_layout().zeros(shell->part->state_name(), rows,
                                                      like.options().layout(at::kStrided).requires_grad(false));
  Shells::give_back(part, std::move(shell));
  std::vector<Tensor> all;
  for (const auto& [name, tensor] : zero.tensors()) all.push_back(tensor);
  return all;
}

int64_t part_width(const std::string& part, int64_t width) {
  const Untraced untraced;
  auto shell = Shells::take(part);
  const int64_t after = shell->part->width_after(width);
  Shells::give_back(part, std::move(shell));
  return after;
}

std::vector<int64_t> part_places(const std::string& part, const std::vector<int64_t>& now, int64_t tokens) {
  const Untraced untraced;
  auto shell = Shells::take(part);
  std::vector<int64_t> places = shell->part->state_layout().places_after(now, tokens);
  Shells::give_back(part, std::move(shell));
  return places;
}

}  // namespace cortado
