#include "cortado/convert/stage.h"

#include <chrono>
#include <map>

#include "cortado/base/error.h"
#include "cortado/base/human.h"
#include "cortado/base/progress.h"

namespace cortado {
namespace {

using StageClock = std::chrono::steady_clock;

double seconds_from(StageClock::time_point start) {
  return std::chrono::duration<double>(StageClock::now() - start).count();
}

TrainingOptions optimizer_options(const StageOptions& options) {
  TrainingOptions result;
  result.learning_rate = options.learning_rate;
  result.beta1 = 0.9;
  result.beta2 = 0.999;
  result.epsilon = 1e-8;
  result.weight_decay = 0;
  return result;
}

void add_to(std::vector<double>& sums, const std::vector<double>& losses) {
  if (sums.empty()) sums.assign(losses.size(), 0.0);
  for (size_t i = 0; i < losses.size(); ++i) sums[i] += losses[i];
}

void copy_values(const NamedTensors& from, NamedTensors& to) {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < from.size(); ++i) to[i].second.copy_(from[i].second);
}

std::vector<double> numbers_of(const Json& list, const std::string& place) {
  std::vector<double> numbers;
  fail_input_if(!list.is_array(), "[", place, "] expected a list of numbers, got ", list.dump());
  for (const Json& entry : list) {
    fail_input_if(!entry.is_number(), "[", place, "] expected a list of numbers, got ", list.dump());
    numbers.push_back(entry.get<double>());
  }
  return numbers;
}

}  // namespace

Json StageState::to_json() const {
  return {{"step", step},
          {"seconds", seconds},
          {"rate", plateau.rate},
          {"plateau_best", std::isfinite(plateau.best) ? Json(plateau.best) : Json(nullptr)},
          {"plateau_waited", plateau.waited},
          {"evaluated_step", evaluated_step},
          {"best_step", best_step},
          {"before", before},
          {"best", best}};
}

StageState StageState::from_json(const Json& json, const std::string& place) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  constexpr double kLargest = std::numeric_limits<double>::max();
  JsonReader reader(json, place);
  StageState state;
  state.step = reader.integer("step", 0, kMost);
  state.seconds = reader.number("seconds", 0, kLargest);
  state.plateau.rate = reader.number("rate", 0, kLargest);
  state.plateau.best =
      reader.optional_number("plateau_best", -kLargest, kLargest).value_or(std::numeric_limits<double>::infinity());
  state.plateau.waited = reader.integer("plateau_waited", 0, kMost);
  state.evaluated_step = reader.integer("evaluated_step", -1, kMost);
  state.best_step = reader.integer("best_step", -1, kMost);
  state.before = numbers_of(reader.any("before"), place);
  state.best = numbers_of(reader.any("best"), place);
  reader.finish();
  return state;
}

Stage::Stage(std::string name, std::shared_ptr<Objective> objective, std::shared_ptr<const Chunks> chunks,
             const StageOptions& options)
    : name_(std::move(name)),
      objective_(std::move(objective)),
      chunks_(std::move(chunks)),
      options_(options),
      optimizer_(objective_->learned(), optimizer_options(options)) {
  state_.plateau.rate = options.learning_rate;
  state_.plateau.minimum = options.minimum_rate;
  for (const auto& [key, parameter] : learned()) best_.emplace_back(key, parameter.detach().clone());
}

bool Stage::run(MetricsFile& metrics, const StageControl& control) {
  ProgressBar bar({.label = name_,
                   .total = steps(),
                   .unit = "tokens",
                   .units_per_count = static_cast<double>(options_.tokens_per_step(chunks_->length())),
                   .quiet = !control.progress});
  bar.start_at(state_.step);
  bool stopping = false;
  while (true) {
    const bool finished = state_.step >= steps();
    const bool due = finished || state_.step % options_.evaluate_every == 0;
    if (due && !stopping && state_.evaluated_step != state_.step) {
      bar.clear();
      stopping = !evaluate(metrics, control);
      if (!stopping && control.checkpoint) control.checkpoint();
    }
    if (done()) {
      use_best();
      return true;
    }
    if (stopping) {
      if (control.checkpoint) control.checkpoint();
      return false;
    }
    const auto start = StageClock::now();
    const double loss = step();
    const double seconds = seconds_from(start);
    state_.seconds += seconds;
    state_.step += 1;
    metrics.write({{"step", control.first_step + state_.step},
                   {"stage", name_},
                   {"loss", loss},
                   {"rate", state_.plateau.rate},
                   {"tokens_per_second", double(options_.tokens_per_step(chunks_->length())) / seconds},
                   {"seconds", state_.seconds}});
    bar.update(state_.step, concat("loss ", fixed(loss, 3)));
    stopping = state_.step == control.stop_at || (control.stop && control.stop());
  }
}

double Stage::step() {
  std::vector<double> sums;
  for (int64_t i = 0; i < options_.accumulate; ++i) {
    const Tensor tokens = chunks_->batch(state_.step * options_.accumulate + i, options_.batch);
    add_to(sums, objective_->losses(tokens, 1.0 / static_cast<double>(options_.accumulate)));
  }
  for (double& sum : sums) sum /= static_cast<double>(options_.accumulate);
  const double loss = objective_->total(sums);
  if (!std::isfinite(loss)) {
    throw Failure(concat("[", name_, "] the loss is not finite at step ", state_.step + 1, "; the best of ",
                         state_.best_step, " steps is kept. A smaller --learning-rate may help"));
  }
  optimizer_.step(state_.plateau.rate);
  optimizer_.clear_gradients();
  return loss;
}

// False: interrupted, and still due.
bool Stage::evaluate(MetricsFile& metrics, const StageControl& control) {
  ProgressBar bar({.label = "evaluate",
                   .total = chunks_->held_out(),
                   .unit = "tokens",
                   .units_per_count = static_cast<double>(chunks_->length()),
                   .quiet = !control.progress});
  std::vector<double> losses;
  for (int64_t i = 0; i < chunks_->held_out(); ++i) {
    if (control.stop && control.stop()) return false;
    add_to(losses, objective_->losses(chunks_->held_out_chunk(i), 0));
    bar.update(i + 1);
  }
  for (double& loss : losses) loss /= static_cast<double>(chunks_->held_out());
  const double total = objective_->total(losses);
  if (!std::isfinite(total)) {
    throw Failure(concat("[", name_, "] the evaluation loss is not finite after step ", state_.step));
  }
  if (state_.step == 0) {
    state_.before = losses;
  } else {
    state_.plateau.evaluated(total);
  }
  state_.evaluated_step = state_.step;
  const bool better = state_.best_step < 0 || total < objective_->total(state_.best);
  if (better) {
    state_.best = losses;
    state_.best_step = state_.step;
    copy_values(learned(), best_);
  }
  metrics.write({{"step", control.first_step + state_.step},
                 {"stage", name_},
                 {"evaluation_loss", total},
                 {"losses", losses},
                 {"rate", state_.plateau.rate},
                 {"seconds", state_.seconds}});
  if (better && control.improved) control.improved();
  return true;
}

void Stage::use_best() {
  NamedTensors current = learned();
  copy_values(best_, current);
}

NamedTensors Stage::tensors() const {
  NamedTensors all;
  for (const auto& [name, parameter] : learned()) all.emplace_back("learned." + name, parameter.detach());
  for (const auto& [name, values] : best_) all.emplace_back("best." + name, values);
  for (const auto& moment : optimizer_.moments()) all.push_back(moment);
  return all;
}

void Stage::restore(const NamedTensors& tensors, const StageState& state) {
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
  optimizer_.restore({given.begin(), given.end()}, state.step);
  const Plateau own = state_.plateau;
  state_ = state;
  state_.plateau.minimum = own.minimum;
}

}  // namespace cortado
