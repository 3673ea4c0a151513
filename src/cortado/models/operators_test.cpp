// Every registered operator (public, private and backward) either answers or throws a one-line error, whatever it is
// given: right calls, with some arguments drawn anew.
//
//   CORTADO_FUZZ_CALLS=100000 build/asan/bin/models_tests --gtest_filter='Operators.*'
//
// CORTADO_FUZZ_FIRST=N prints every call from number N on before it is made; the last one printed is the one that ended
// the program.
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cstdlib>
#include <set>

#include "cortado/models/part.h"
#include "cortado/nn/weights.h"
#include "cortado/testing/drawn_calls.h"
#include "cortado/testing/kernels.h"
#include "cortado/testing/subjects.h"

namespace cortado {
namespace {

using testing::Calls;
using testing::Stack;
using Given = std::map<std::string, c10::IValue>;

c10::OperatorHandle operator_of(const std::string& name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), "");
}

// Calls the operator with these arguments and defaults for the others.
Stack call(const std::string& name, const Given& given) {
  const auto op = operator_of("cortado::" + name);
  Stack stack;
  size_t used = 0;
  for (const auto& argument : op.schema().arguments()) {
    const auto found = given.find(argument.name());
    used += found != given.end();
    stack.push_back(found != given.end() ? found->second : argument.default_value().value_or(c10::IValue()));
  }
  EXPECT_EQ(used, given.size()) << name;
  op.callBoxed(&stack);
  return stack;
}

// Differentiates the sum of all results that have a gradient.
void differentiate(const Stack& results) {
  Tensor sum;
  const auto add = [&](const Tensor& x) {
    if (!x.defined() || !x.requires_grad()) return;
    const Tensor part = (x.is_complex() ? at::real(x) : x).sum().to(at::kDouble);
    sum = sum.defined() ? sum + part : part;
  };
  for (const c10::IValue& result : results) {
    if (result.isTensor()) add(result.toTensor());
    if (!result.isTensorList()) continue;
    for (const Tensor& x : result.toTensorVector()) add(x);
  }
  if (sum.defined() && sum.device().is_cpu()) torch::autograd::backward({sum}, {}, /*retain_graph=*/true);
}

Tensor leaf(at::IntArrayRef sizes, at::ScalarType type = at::kFloat) {
  return at::randn(sizes, type).set_requires_grad(true);
}

// --- Right calls ---

// Calls of primitives and of their gradients: the computations of every mechanism, on whole, packed and continued
// sequences.
void run_mechanisms() {
  const Tensor bounds = at::tensor({0, 3, 3, 7}, at::kLong);
  for (const auto& [mechanism, text, causal] : testing::all_subjects()) {
    Json settings = parse_json(text, "example");
    settings["mixer"] = mechanism->name;
    const auto mixer = make_mixer(settings, {.dim = 24, .heads = 4, .causal = causal}, "example");
    const auto run = [&](int64_t rows, int64_t tokens, const Batch& batch, SequenceState* state) {
      differentiate({mixer->forward(leaf({rows, tokens, 24}), batch, state)});
    };
    run(2, 6, {}, nullptr);
    run(1, 7, {.cu_seqlens = bounds}, nullptr);
    if (!causal || mixer->state_layout().zeros("", 0, at::kFloat).tensors().empty()) continue;
    SequenceState state = mixer->zero_state(2, at::kFloat);
    run(2, 5, {}, &state);
    run(2, 1, {}, &state);
  }
}

// Calls the operator from the zero state and then from the states that it returned, and differentiates both; packed
// sequences too.
void call_and_go_on(const std::string& name, Given given) {
  const auto go_on = [&](const Given& arguments) {
    const Stack results = call(name, arguments);
    differentiate(results);
    const auto& schema = operator_of("cortado::" + name).schema();
    Given next = arguments;
    for (size_t i = 0; i < results.size(); ++i) {
      for (const auto& argument : schema.arguments()) {
        const std::string& result = schema.returns()[i].name();
        const bool same = argument.name() == result || (argument.name() == "initial_state" && result == "final_state");
        if (same && results[i].isTensor()) next[argument.name()] = results[i].toTensor().detach();
      }
    }
    const auto causal = next.find("causal");
    if (causal == next.end() || causal->second.toBool()) differentiate(call(name, next));
  };
  go_on(given);
  if (given.contains("extra_k") || given.contains("past_k")) return;
  for (auto& [key, value] : given) {
    const bool timed = value.isTensor() && value.toTensor().dim() >= 3 && value.toTensor().size(0) == 2;
    if (timed) value = value.toTensor().detach().narrow(0, 0, 1).set_requires_grad(true);
    if (key == "position") value = at::tensor({0, 2, 3}, at::kLong);
  }
  given["cu_seqlens"] = at::tensor({0, 2, 2, 5}, at::kLong);
  go_on(given);
}

Given qkv(at::ScalarType type = at::kFloat, int64_t heads = 2) {
  return {{"q", leaf({2, 5, 2 * heads, 4}, type)},
          {"k", leaf({2, 5, heads, 4}, type)},
          {"v", leaf({2, 5, heads, 3}, type)}};
}

Given with(Given given, const Given& more) {
  for (const auto& [name, value] : more) given[name] = value;
  return given;
}

void call_primitives() {
  const Tensor mask = at::rand({2, 4}) < 0.5;
  for (const auto type : {at::kFloat, at::kDouble, at::kBFloat16}) {
    call_and_go_on("gated_scan", with(qkv(type), {{"g", leaf({2, 5, 2, 4}, type)}}));
    call_and_go_on("_gated_scores", with(qkv(type), {{"g", leaf({2, 5, 2}, type)}}));
    call_and_go_on("delta_scan", with(qkv(type), {{"beta", leaf({2, 5, 2}, type)}}));
    call_and_go_on("dplr_scan", with(qkv(type), {{"a", leaf({2, 5, 2, 4}, type)},
                                                 {"b", leaf({2, 5, 2, 4}, type)},
                                                 {"g", leaf({2, 5, 1, 4}, type)}}));
    call_and_go_on("window_attention", with(qkv(type), {{"window", 2},
                                                        {"extra_k", leaf({2, 4, 2, 4}, type)},
                                                        {"extra_v", leaf({2, 4, 2, 3}, type)},
                                                        {"extra_mask", mask}}));
    call_and_go_on("window_attention", with(qkv(type), {{"window", 3}, {"softcap", 2.0}}));
    call_and_go_on("_window_attention", with(qkv(type), {{"extra_k", leaf({2, 4, 2, 4}, type)},
                                                         {"extra_v", leaf({2, 4, 2, 3}, type)},
                                                         {"first_key", at::tensor({0, 2}, at::kLong)}}));
    call_and_go_on("short_conv", {{"x", leaf({2, 5, 4}, type)},
                                  {"weight", leaf({4, 3}, type)},
                                  {"bias", leaf({4}, type)},
                                  {"activation", "silu"}});
    call_and_go_on("slot_scan", {{"q", leaf({2, 5, 4, 6}, type)},
                                 {"w", leaf({2, 5, 2, 6}, type)},
                                 {"x", leaf({2, 5, 2, 3}, type)},
                                 {"decay", at::rand({5, 6}).to(type)}});
  }
  call_and_go_on("elementwise_scan", {{"log_a", leaf({2, 5, 4}, at::kComplexFloat)}, {"b", leaf({2, 5, 4})}});
}

void call_mechanisms() {
  const Given attended = qkv(), slots = {{"s", leaf({2, 5, 2, 6})}};
  call_and_go_on("abc", with(attended, slots));
  call_and_go_on("gated_slot", with(with(attended, slots), {{"g", -at::rand({2, 5, 2, 6})}}));
  call_and_go_on("normalized_linear", attended);
  call_and_go_on("normalized_linear", with(attended, {{"causal", false}}));
  call_and_go_on("blurry_window", with(attended, {{"slots", 3}, {"period", 5}, {"position", at::tensor({0, 7})}}));
  call_and_go_on("blurry_window", with(attended, {{"slots", 3}, {"period", 5}, {"decay", false}}));
  const Given latents = {{"key_logits", leaf({2, 5, 2, 4})}, {"v", leaf({2, 5, 2, 3})}};
  for (const bool causal : {true, false}) {
    call_and_go_on("latte", with(latents, {{"query_logits", leaf({2, 5, 4, 4})}, {"causal", causal}}));
  }
  call_and_go_on("latte", with(latents, {{"query_logits", leaf({2, 5, 4, 4})}}));
  const Given mixed = with(latents, {{"query_logits", leaf({2, 5, 4, 5})},
                                     {"window_q", leaf({2, 5, 4, 6})},
                                     {"window_k", leaf({2, 5, 2, 6})},
                                     {"window", 3}});
  call_and_go_on("macchiato", mixed);
  call_and_go_on("macchiato", with(mixed, {{"past_k", leaf({2, 2, 2, 6})},
                                           {"past_v", leaf({2, 2, 2, 3})},
                                           {"past_length", at::tensor({0, 2})}}));
  for (const char* layout : {"sliding", "terrace"}) {
    for (const int64_t window : {2, 30}) {
      call_and_go_on("lolcats", with(attended, {{"phi_q", at::rand({2, 5, 2, 8}).set_requires_grad(true)},
                                                {"phi_k", at::rand({2, 5, 2, 8}).set_requires_grad(true)},
                                                {"window_factor", leaf({4})},
                                                {"window", window},
                                                {"layout", layout}}));
    }
  }
}

// Parts of models, and operators without tensors.
void call_parts() {
  const Json config = {{"dim", 24}, {"heads", 4}, {"vocabulary", 16}, {"layers", 1}, {"mixer", {{"mixer", "softmax"}}}};
  const std::string full = call("config", {{"config", config.dump()}})[0].toStringRef();
  call("mechanisms", {{"dim", 24}, {"heads", 4}});
  call("asked_settings", {{"kind", "training"}, {"settings", "{}"}});
  call("_available_isas", {});
  call("_select_isa", {{"name", ""}});
  std::vector<Json> texts = {{{"part", "block"}, {"config", parse_json(full, "config")}, {"layer", 0}}};
  for (const char* end : {"embedding", "norm", "logits", "loss"}) {
    texts.push_back({{"part", end}, {"config", parse_json(full, "config")}});
  }
  for (const Mechanism* mechanism : mechanisms()) {
    if (!mechanism->causal) continue;
    Json settings = parse_json(testing::examples_of(*mechanism).examples[0], "example");
    settings["mixer"] = mechanism->name;
    texts.push_back({{"part", "mixer"}, {"settings", settings}, {"dim", 24}, {"heads", 4}});
  }
  for (const Json& text : texts) {
    const auto part = Part::make(text.dump());
    std::vector<Tensor> weights;
    std::vector<std::string> names;
    for (const auto& weight : named_weights(part->module())) {
      weights.push_back(weight.value().detach());
      names.push_back(weight.key());
    }
    const Tensor tokens = at::randint(16, {2, 5}, at::kLong), x = leaf({2, 5, 24});
    std::vector<Tensor> inputs = {text["part"] == "embedding" ? tokens : x};
    if (text["part"] == "loss") inputs.push_back(tokens);
    const std::vector<Tensor> none;
    Given given = {{"part", text.dump()}, {"autocast", ""},   {"training", false},
                   {"weights", weights},  {"inputs", inputs}, {"state", none}};
    for (const bool stateful : {false, true}) {
      if (stateful) {
        const auto zero = call("part_zero_state", {{"part", text.dump()}, {"rows", 2}, {"like", x}})[0];
        if (zero.toTensorVector().empty()) continue;
        given["state"] = zero;
      }
      const auto results = call("part", given)[0].toTensorVector();
      differentiate({c10::IValue(results)});
      c10::List<OptionalTensor> gradients;
      for (const Tensor& result : results) {
        gradients.push_back(result.is_floating_point() ? OptionalTensor(at::ones_like(result)) : std::nullopt);
      }
      call("part_backward", with(given, {{"gradients", gradients}}));
      call("part_calling", with(given, {{"called", std::vector<std::string>()}, {"caller", 0}}));
    }
    call("part_width", {{"part", text.dump()}, {"width", 24}});
    if (text["part"] != "embedding") continue;
    call("part_places", {{"part", text.dump()}, {"now", std::vector<int64_t>{1}}, {"tokens", 3}});
  }
}

// Operators without a CPU kernel: the arguments are right except for their device.
void add_for_gpus(Calls& calls) {
  const Tensor q = leaf({2, 5, 4, 4}).detach(), theta = leaf({2, 5, 2, 6}).detach(), k = leaf({2, 5, 2, 4}).detach();
  const c10::IValue none;
  calls["cortado::_latte_scores"] = {{q, theta, k, none, none, none, none}};
  calls["cortado::_latte_scores_backward"] = {
      {at::ones({2, 5, 4, 6}), none, at::ones({2, 2, 6}), q, theta, k, none, none, none, none}};
}

Calls right_calls() {
  Calls calls;
  at::manual_seed(1);
  {
    const testing::NotedCalls noted(calls);
    run_mechanisms();
    call_primitives();
    call_mechanisms();
    call_parts();
    call("_checked_integers", {{"x", at::tensor({1, 2})}, {"what", "[x] it"}, {"low", 0}, {"high", 3}});
    call("_once_backward", {{"gradient", at::ones({2, 3})}});
  }
  add_for_gpus(calls);
  return calls;
}

// --- Drawn calls ---

struct Counts {
  int64_t answered = 0, refused = 0;
  std::map<std::string, int64_t> others;  // other error messages, and where they came from
};

const char* first_call() { return std::getenv("CORTADO_FUZZ_FIRST"); }

void try_call(const c10::OperatorHandle& op, Stack arguments, bool differentiated, Counts& counts) {
  const std::string text = testing::text_of(op, arguments);
  if (first_call()) std::fprintf(stderr, "%s%s\n", text.c_str(), differentiated ? " differentiated" : "");
  for (c10::IValue& value : arguments) {
    const bool can = value.isTensor() && value.toTensor().defined() && value.toTensor().is_floating_point();
    if (can && differentiated) value = value.toTensor().detach().set_requires_grad(true);
  }
  try {
    op.callBoxed(&arguments);
    if (differentiated && !op.schema().name().ends_with("_backward")) differentiate(arguments);
    ++counts.answered;
  } catch (const InputError& error) {
    ++counts.refused;
    const std::string said = error.what();
    if (said.empty() || said.find('\n') != std::string::npos) ++counts.others[concat(text, ": ", said)];
  } catch (const c10::NotImplementedError&) {
    ++counts.refused;  // no kernel for this device: the dispatcher's own message
  } catch (const c10::Error& error) {
    ++counts.others[concat(text, ":\n    ", error.what_without_backtrace())];
  } catch (const std::exception& error) {
    ++counts.others[concat(text, ":\n    ", error.what())];
  }
}

std::set<std::string> our_operators() {
  std::set<std::string> names;
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (name.name.starts_with("cortado::")) names.insert(name.name);
  }
  return names;
}

TEST(Operators, AnswerOrSayWhatIsWrongWhateverTheyAreGiven) {
  const testing::AnyIsa back;
  const char* wanted = std::getenv("CORTADO_FUZZ_CALLS");
  const int64_t calls = wanted ? std::atoll(wanted) : 2000, first = first_call() ? std::atoll(first_call()) : 0;
  const Calls right = right_calls();
  std::vector<std::string> names;
  for (const std::string& name : our_operators()) {
    // save_weights writes files and is covered by the checkpoints' tests; inner is implemented in Python.
    if (name == "cortado::save_weights" || name == "cortado::inner") continue;
    EXPECT_TRUE(right.contains(name)) << "no right call of " << name;
    if (right.contains(name)) names.push_back(name);
  }
  Counts counts;
  for (int64_t i = first; i < first + calls; ++i) {
    const std::string& name = names[i % names.size()];
    const auto& of_it = right.at(name);
    testing::Changes changes(i, of_it);
    const auto op = operator_of(name);
    Stack arguments = changes.changed(op, of_it[changes.below(of_it.size())]);
    try_call(op, std::move(arguments), changes.below(2) == 0, counts);
  }
  for (const auto& [what, often] : counts.others) ADD_FAILURE() << what;
  EXPECT_GT(counts.answered, calls / 8);
  EXPECT_GT(counts.refused, calls / 8);
  std::printf("%s", concat(counts.answered, " answered, ", counts.refused, " refused\n").c_str());
}

}  // namespace
}  // namespace cortado
