#include "cortado/generate/session.h"

#include <c10/core/InferenceMode.h>

#include <algorithm>

#include "cortado/base/error.h"
#include "cortado/formats/safetensors.h"
#include "cortado/models/relay.h"
#include "cortado/nn/dtype.h"

namespace cortado {
namespace {

at::Tensor to_tensor(std::span<const int32_t> tokens) {
  auto result = at::empty({static_cast<int64_t>(tokens.size())}, at::kLong);
  std::copy(tokens.begin(), tokens.end(), result.mutable_data_ptr<int64_t>());
  return result;
}

at::Tensor take(const NamedTensors& extra, const std::string& name, at::ScalarType type, const std::string& path) {
  for (const auto& [key, tensor] : extra) {
    if (key == name && tensor.scalar_type() == type) return tensor;
  }
  throw InputError(concat("[", path, "] is not a saved session: it has no \"", name, "\""));
}

// Refuses a state of equal weights with another memory, naming both memories if they are known.
void check_memory(const TensorFile& file, const std::string& identity, const std::string& memory) {
  const auto owner = file.metadata.find("identity");
  const auto weights = [](const std::string& name) { return name.substr(name.find('-') + 1); };
  if (owner == file.metadata.end() || owner->second == identity || weights(owner->second) != weights(identity)) return;
  std::string other;
  for (const auto& [name, tensor] : file.tensors) {
    if (name == "extra.memory" && tensor.scalar_type() == at::kByte) other = text_of_tensor(tensor);
  }
  throw InputError(concat("[state] ", file.path, " is of this model with another memory: it was saved with ",
                          other.empty() ? "other flags" : other, ", here the model has ",
                          memory.empty() ? "others" : memory));
}

}  // namespace

Session::Session(std::shared_ptr<LanguageModel> model, std::shared_ptr<const Tokenizer> tokenizer)
    : model_(std::move(model)), tokenizer_(std::move(tokenizer)) {
  fail_input_if(tokenizer_ && tokenizer_->vocabulary() > model_->config().vocabulary, "[session] the tokenizer has ",
                tokenizer_ ? tokenizer_->vocabulary() : 0, " tokens, the model only ", model_->config().vocabulary);
  state_ = model_->zero_state(1);
}

int64_t Session::prefill(const std::vector<int32_t>& tokens, int64_t chunk, const std::function<bool()>& cancelled) {
  fail_input_if(chunk < 1, "[session] a chunk must have at least one token, got ", chunk);
  const auto all = to_tensor(tokens);
  int64_t done = 0;
  while (done < all.size(0) && !(done > 0 && cancelled && cancelled())) {
    const int64_t end = std::min(done + chunk, all.size(0));
    read(all.slice(0, done, end).unsqueeze(0));
    done = end;
  }
  remember(std::span(tokens).first(static_cast<size_t>(done)));
  return done;
}

// Reads in rounds of one chunk per process, as long as tokens remain after the round. Returns the number of tokens
// read.
int64_t Session::read_rounds(const Ranks& ranks, const at::Tensor& tokens, int64_t chunk,
                             const std::function<bool()>& cancelled) {
  const c10::InferenceMode inference;
  const Relay relay(ranks, ranks.size());
  const int64_t round = chunk * ranks.size(), begun = state_.position.item<int64_t>();
  int64_t done = 0;
  const auto stops = [&] {
    const auto said = ranks.gather(done > 0 && cancelled && cancelled() ? "stop" : "");
    return std::any_of(said.begin(), said.end(), [](const std::string& word) { return !word.empty(); });
  };
  while (done + round < tokens.size(0) && !stops()) {
    const int64_t own = done + chunk * ranks.rank();
    const at::Tensor part = tokens.slice(0, own, own + chunk).unsqueeze(0).to(model_->device());
    Batch about;
    about.relay = &relay;
    about.before = begun + own;
    about.shortest = chunk;
    model_->hidden(part, about, &state_);
    relay.hand_back(state_.layers);
    relay.finish();
    done += round;
    state_.position.fill_(begun + done);
  }
  return done;
}

int64_t Session::prefill_among(const Ranks& ranks, const std::vector<int32_t>& tokens, int64_t chunk,
                               const std::function<bool()>& cancelled) {
  if (!ranks.several()) return prefill(tokens, chunk, cancelled);
  const auto all = to_tensor(tokens);
  const ModelConfig& config = model_->config();
  ranks.by_first([&] {
    fail_input_if(config.positions == PositionKind::kLearned && depth_ + all.size(0) > config.context,
                  "[model] the model has learned positions for ", config.context, " tokens, the sequence reaches ",
                  depth_ + all.size(0));
    for (const int32_t token : tokens) {
      fail_input_if(token < 0 || token >= config.vocabulary, "[model] token ", token, " is outside the vocabulary 0..",
                    config.vocabulary - 1);
    }
  });
  const at::Tensor begun = at::full({1}, depth_, at::kLong);
  ranks.broadcast(begun);
  state_.position.fill_(begun.item<int64_t>());
  const int64_t done = read_rounds(ranks, all, chunk, cancelled);
  depth_ += done;
  remember(std::span(tokens).first(static_cast<size_t>(done)));
  if (!ranks.first() || (done > 0 && cancelled && cancelled())) return done;
  return done + prefill({tokens.begin() + done, tokens.end()}, chunk, cancelled);
}

void Session::step(int32_t token) {
  read(at::full({1, 1}, token, at::kLong));
  remember({&token, 1});
}

void Session::read(const at::Tensor& tokens) {
  const c10::InferenceMode inference;  // no autograd, and less overhead per small operation of a step
  const auto hidden = model_->hidden(tokens.to(model_->device()), {}, &state_);
  const auto last = model_->logits(hidden.slice(1, hidden.size(1) - 1));
  logits_ = last.reshape({-1}).to(at::kCPU, at::kFloat);
  depth_ += tokens.size(1);
}

const at::Tensor& Session::logits() const {
  fail_input_if(!logits_.defined(), "[session] nothing has been read yet: there is nothing to go on from");
  return logits_;
}

// Drops old tokens in large steps, so that no token costs a shift of the whole list.
void Session::remember(std::span<const int32_t> tokens) {
  recent_.insert(recent_.end(), tokens.begin(), tokens.end());
  if (recent_.size() >= 2 * kRecentTokens) recent_.erase(recent_.begin(), recent_.end() - kRecentTokens);
}

std::optional<int64_t> trained_context(const LanguageModel& model) {
  const ModelConfig& config = model.config();
  const bool looks_back = std::any_of(model.mixers().begin(), model.mixers().end(),
                                      [](const auto& mixer) { return mixer->state_layout().grows(); });
  // Learned positions end with an error, not with wrong output.
  const bool ends = config.positions == PositionKind::kLearned;
  return looks_back && !ends && config.context > 0 ? std::optional(config.context) : std::nullopt;
}

Session Session::fork() const {
  Session copy(*this);
  copy.state_ = state_.clone();
  return copy;
}

void Session::save(const std::string& path, const std::string& memory) const {
  const NamedTensors extra = {{"logits", logits()},
                              {"recent", to_tensor(recent_)},
                              {"memory", tensor_of_text(memory)},
                              {"dtype", at::full({1}, static_cast<int64_t>(model_->dtype()), at::kLong)}};
  write_safetensors(path, state_.file(model_->identity(), extra));
}

void Session::load(const std::string& path, const std::string& memory) {
  const TensorFile file = read_safetensors(path);
  check_memory(file, model_->identity(), memory);
  NamedTensors extra;
  const auto state = ModelState::of_file(file, model_->identity(), &extra);
  const auto dtype = static_cast<at::ScalarType>(take(extra, "dtype", at::kLong, path).item<int64_t>());
  fail_input_if(dtype != model_->dtype(), "[", path, "] was made with --dtype ", dtype_name(dtype),
                ", and the model is open with another one");
  const auto logits = take(extra, "logits", at::kFloat, path);
  const auto recent = take(extra, "recent", at::kLong, path);
  fail_input_if(logits.dim() != 1 || logits.size(0) != model_->config().vocabulary || recent.dim() != 1, "[", path,
                "] is not a session of this model");
  state_ = state.to(at::TensorOptions().device(model_->device()));
  logits_ = logits;
  const auto* tokens = recent.const_data_ptr<int64_t>();
  recent_.assign(tokens, tokens + recent.numel());
  depth_ = state.position.cpu()[0].item<int64_t>();
}

}  // namespace cortado
