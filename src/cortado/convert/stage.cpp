#include "cortado/convert/stage.h"

#include <map>

#include "cortado/base/error.h"
#include "cortado/nn/weights.h"

namespace cortado {
namespace {

TrainingOptions training_options(const StageOptions& options, int64_t context) {
  TrainingOptions result;
  result.batch = options.batch;
  result.context = context;
  result.accumulate = options.accumulate;
  result.steps = options.steps(context);
  result.evaluate_every = options.evaluate_every;
  result.log_every = 1;
  result.beta1 = 0.9;
  result.beta2 = 0.999;
  result.epsilon = 1e-8;
  result.weight_decay = 0;
  result.clip = 0;
  return result;
}

// An objective on a text's chunks as a task of the training loop.
class StageTask : public Task {
 public:
  StageTask(std::string name, std::shared_ptr<Objective> objective, std::shared_ptr<const Chunks> chunks,
            const StageOptions& options)
      : name_(std::move(name)), objective_(std::move(objective)), chunks_(std::move(chunks)), options_(options) {}

  const std::string& name() const override { return name_; }
  Parameters learned() const override { return objective_->learned(); }
  bool validates() const override { return true; }

  // Returns the sums of the parts' losses, float64.
  LearnedBatch learn(DataPosition& position, const BatchShare& share) override {
    const Sequences batch = chunks_->batch(position.batches++, options_.batch);
    const int64_t rows = batch.tokens.size(0), begin = share.begin(rows), count = share.end(rows) - begin;
    const Sequences part{batch.tokens.narrow(0, begin, count), batch.targets.narrow(0, begin, count)};
    const double terms = objective_->terms(part);
    if (terms == 0) return {no_losses()};
    return {at::tensor(objective_->losses(part, terms), at::kDouble) * terms, terms, part.tokens.numel()};
  }

  double loss(const Tensor& means) const override { return objective_->total(values(means)); }

  Validation validate(const Progress& progress) override {
    const int64_t count = chunks_->held_out();
    Tensor sums = no_losses(), terms = at::zeros({}, at::kDouble);
    for (int64_t i = 0; i < count; ++i) {
      progress(i * chunks_->length(), count * chunks_->length());
      if (i % ranks_.size() != ranks_.rank()) continue;
      const Sequences chunk = chunks_->held_out_chunk(i);
      const double weight = objective_->terms(chunk);
      sums += at::tensor(objective_->losses(chunk, 0), at::kDouble) * weight;
      terms += weight;
    }
    ranks_.sum(sums);
    ranks_.sum(terms);
    const std::vector<double> parts = values(sums / terms);
    const double total = objective_->total(parts);
    return {total, parts, {{"evaluation_loss", total}, {"losses", parts}}};
  }

 private:
  Tensor no_losses() const { return at::zeros({static_cast<int64_t>(objective_->parts().size())}, at::kDouble); }

  static std::vector<double> values(const Tensor& means) {
    return {means.const_data_ptr<double>(), means.const_data_ptr<double>() + means.numel()};
  }

  std::string name_;
  std::shared_ptr<Objective> objective_;
  std::shared_ptr<const Chunks> chunks_;
  StageOptions options_;
};

void copy_values(const NamedTensors& from, const NamedTensors& to) {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < from.size(); ++i) to[i].second.copy_(from[i].second);
}

}  // namespace

void Stage::fields(JsonFields& json, TrainerState& state, std::vector<double>& before, std::vector<double>& best) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  constexpr double kLargest = std::numeric_limits<double>::max();
  Plateau& plateau = *state.plateau;
  json.integer("step", state.step, 0, kMost);
  json.number("seconds", state.seconds, 0, kLargest);
  json.number("rate", plateau.rate, 0, kLargest);
  json.limit("plateau_best", plateau.best);
  json.integer("plateau_waited", plateau.waited, 0, kMost);
  json.integer("evaluated_step", state.validated_step, -1, kMost);
  json.integer("best_step", state.best_step, -1, kMost);
  json.values("before", before, "numbers");
  json.values("best", best, "numbers");
}

Stage::Stage(std::string name, std::shared_ptr<Objective> objective, const std::shared_ptr<const Chunks>& chunks,
             const StageOptions& options, const Ranks& ranks)
    : name_(std::move(name)),
      objective_(std::move(objective)),
      options_(training_options(options, chunks->length())),
      trainer_(std::make_shared<StageTask>(name_, objective_, chunks, options), options_, ranks) {
  const at::NoGradGuard no_grad;
  for (const Parameter& parameter : learned()) ranks.broadcast(parameter.value);
  TrainerState state = trainer_.state();
  state.validated_step = state.best_step = -1;  // evaluated before the first step too
  state.plateau = Plateau{.minimum = options.minimum_rate, .rate = options.learning_rate};
  trainer_.begin_with(state);
  for (const auto& [name, value, role] : learned()) best_.emplace_back(name, value.detach().clone());
}

bool Stage::run(RunKeeper keeper, const RunControl& control) {
  const auto told = keeper.validated;
  keeper.validated = [&](const Validation& found, bool best) {
    if (trainer_.state().step == 0) before_ = found.parts;
    if (best) {
      best_losses_ = found.parts;
      copy_values(tensors_of(learned()), best_);
    }
    told(found, best);
  };
  if (!trainer_.run(keeper, control)) return false;
  copy_values(best_, tensors_of(learned()));
  return true;
}

Json Stage::standing() const {
  TrainerState state = trainer_.state();
  auto before = before_, best = best_losses_;
  return JsonFields::written([&](JsonFields& json) { fields(json, state, before, best); });
}

NamedTensors Stage::tensors() const {
  NamedTensors all;
  for (const auto& [name, value, role] : learned()) all.emplace_back("learned." + name, value.detach());
  for (const auto& [name, values] : best_) all.emplace_back("best." + name, values);
  for (const auto& moment : trainer_.optimizer().moments()) all.push_back(moment);
  return all;
}

void Stage::restore(const NamedTensors& tensors, const Json& standing, const std::string& place) {
  TrainerState state = trainer_.state();
  JsonFields::read(
      standing, place, [&](JsonFields& json) { fields(json, state, before_, best_losses_); }, /*required=*/true);
  std::map<std::string, Tensor> given(tensors.begin(), tensors.end());
  const auto take = [&](const std::string& name, const Tensor& into) {
    const auto found = given.find(name);
    fail_input_if(found == given.end(), "[--resume] the checkpoint is of another conversion: it has no \"", name, "\"");
    fail_input_if(found->second.sizes() != into.sizes(), "[--resume] the checkpoint is of another conversion: \"", name,
                  "\" is ", found->second.sizes(), ", expected ", into.sizes());
    const at::NoGradGuard no_grad;
    into.copy_(found->second);
    given.erase(found);
  };
  for (const auto& [name, value, role] : learned()) take("learned." + name, value);
  for (const auto& [name, values] : best_) take("best." + name, values);
  trainer_.optimizer().restore({given.begin(), given.end()}, state.step);
  state.tokens = state.step * options_.tokens_per_step();
  state.data.batches = state.step * options_.accumulate;
  if (!best_losses_.empty()) state.best_loss = objective_->total(best_losses_);
  trainer_.resume(state);
}

}  // namespace cortado
