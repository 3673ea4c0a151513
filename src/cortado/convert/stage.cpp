#include "cortado/convert/stage.h"

#include <map>

#include "cortado/base/error.h"

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

// An objective on a text's chunks, as a task.
class StageTask : public Task {
 public:
  StageTask(std::string name, std::shared_ptr<Objective> objective, std::shared_ptr<const Chunks> chunks,
            const StageOptions& options)
      : name_(std::move(name)), objective_(std::move(objective)), chunks_(std::move(chunks)), options_(options) {}

  const std::string& name() const override { return name_; }
  NamedTensors learned() const override { return objective_->learned(); }
  bool validates() const override { return true; }

  // The losses of the parts, float64; loss() divides them.
  LearnedBatch learn(DataPosition& position, const Turn& turn) override {
    const Sequences batch = chunks_->batch(position.batches++, options_.batch);
    const int64_t rows = batch.tokens.size(0), begin = turn.begin(rows), count = turn.end(rows) - begin;
    const Sequences part{batch.tokens.narrow(0, begin, count), batch.targets.narrow(0, begin, count)};
    const double share = turn.parts == 1 ? 1.0 : counted(part) / counted(batch);
    if (share == 0) return {at::zeros({static_cast<int64_t>(objective_->parts().size())}, at::kDouble), 0};
    const auto losses = objective_->losses(part, share / static_cast<double>(options_.accumulate));
    return {at::tensor(losses, at::kDouble) * share, part.tokens.numel()};
  }

  double loss(const Tensor& shares) const override { return objective_->total(mean(shares, options_.accumulate)); }

  Validation validate(const Progress& progress) override {
    const int64_t count = chunks_->held_out();
    Tensor sums = at::zeros({static_cast<int64_t>(objective_->parts().size())}, at::kDouble);
    for (int64_t i = 0; i < count; ++i) {
      progress(i * chunks_->length(), count * chunks_->length());
      if (i % ranks_.size() != ranks_.rank()) continue;
      sums += at::tensor(objective_->losses(chunks_->held_out_chunk(i), 0), at::kDouble);
    }
    ranks_.sum(sums);
    const std::vector<double> parts = mean(sums, count);
    const double total = objective_->total(parts);
    return {total, parts, {{"evaluation_loss", total}, {"losses", parts}}};
  }

 private:
  static std::vector<double> mean(const Tensor& sums, int64_t count) {
    const Tensor means = sums / static_cast<double>(count);
    return {means.const_data_ptr<double>(), means.const_data_ptr<double>() + means.numel()};
  }

  static double counted(const Sequences& of) { return static_cast<double>(of.targets.ge(0).sum().item<int64_t>()); }

  std::string name_;
  std::shared_ptr<Objective> objective_;
  std::shared_ptr<const Chunks> chunks_;
  StageOptions options_;
};

void copy_values(const NamedTensors& from, NamedTensors& to) {
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

Stage::Stage(std::string name, std::shared_ptr<Objective> objective, std::shared_ptr<const Chunks> chunks,
             const StageOptions& options, const Ranks& ranks)
    : name_(std::move(name)),
      objective_(std::move(objective)),
      options_(training_options(options, chunks->length())),
      trainer_(std::make_shared<StageTask>(name_, objective_, chunks, options), options_, ranks) {
  const at::NoGradGuard no_grad;
  for (const auto& [key, parameter] : objective_->learned()) ranks.broadcast(parameter);
  TrainerState state = trainer_.state();
  state.validated_step = state.best_step = -1;  // evaluated before the first step, too
  state.plateau = Plateau{.minimum = options.minimum_rate, .rate = options.learning_rate};
  trainer_.begin_with(state);
  for (const auto& [key, parameter] : learned()) best_.emplace_back(key, parameter.detach().clone());
}

bool Stage::run(RunKeeper keeper, const RunControl& control) {
  const auto told = keeper.validated;
  keeper.validated = [&](const Validation& found, bool best) {
    if (trainer_.state().step == 0) before_ = found.parts;
    if (best) {
      best_losses_ = found.parts;
      copy_values(learned(), best_);
    }
    told(found, best);
  };
  if (!trainer_.run(keeper, control)) return false;
  NamedTensors current = learned();
  copy_values(best_, current);
  return true;
}

Json Stage::standing() const {
  TrainerState state = trainer_.state();
  auto before = before_, best = best_losses_;
  return JsonFields::written([&](JsonFields& json) { fields(json, state, before, best); });
}

NamedTensors Stage::tensors() const {
  NamedTensors all;
  for (const auto& [name, parameter] : learned()) all.emplace_back("learned." + name, parameter.detach());
  for (const auto& [name, values] : best_) all.emplace_back("best." + name, values);
  for (const auto& moment : trainer_.optimizer().moments()) all.push_back(moment);
  return all;
}

void Stage::restore(const NamedTensors& tensors, const Json& standing, const std::string& place) {
  TrainerState state = trainer_.state();
  JsonFields::read(
      standing, place, [&](JsonFields& json) { fields(json, state, before_, best_losses_); }, /*required=*/true);
  std::map<std::string, Tensor> given(tensors.begin(), tensors.end());
  const auto take = [&](const std::string& name, Tensor into) {
    const auto found = given.find(name);
    fail_input_if(found == given.end(), "[--resume] the checkpoint is of another conversion: it has no \"", name, "\"");
    fail_input_if(found->second.sizes() != into.sizes(), "[--resume] the checkpoint is of another conversion: \"", name,
                  "\" is ", found->second.sizes(), ", expected ", into.sizes());
    const at::NoGradGuard no_grad;
    into.copy_(found->second);
    given.erase(found);
  };
  for (const auto& [name, parameter] : learned()) take("learned." + name, parameter);
  for (const auto& [name, values] : best_) take("best." + name, values);
  trainer_.optimizer().restore({given.begin(), given.end()}, state.step);
  state.tokens = state.step * options_.tokens_per_step();
  state.data.batches = state.step * options_.accumulate;
  if (!best_losses_.empty()) state.best_loss = objective_->total(best_losses_);
  trainer_.resume(state);
}

}  // namespace cortado
