#include "cortado/evaluate/evaluate.h"

#include <c10/core/GradMode.h>

#include "cortado/base/error.h"

namespace cortado {

namespace {

// Tokens begin .. begin + length are the input, one further on the targets; the last `scored` of them count.
struct Window {
  int64_t begin, length, scored;
};

void check(const LanguageModel& model, const EvaluateOptions& options) {
  const auto& config = model.config();
  fail_input_if(options.context < 1, "[evaluate] context must be >= 1, got ", options.context);
  fail_input_if(options.stride < 0 || options.stride > options.context,
                "[evaluate] stride must be from 1 to the context, ", options.context, ", got ", options.stride);
  fail_input_if(options.tokens_per_call < 1, "[evaluate] tokens_per_call must be >= 1");
  const int64_t longest = options.context + static_cast<int64_t>(options.begin.size());
  fail_input_if(config.positions == PositionKind::kLearned && longest > config.context, "[evaluate] context ", longest,
                " is beyond the model's learned positions: it has ", config.context);
}

// Every prediction of every document in exactly one window. All windows of a document have one length, so that they can
// run together: the last one begins earlier instead of being shorter.
std::vector<Window> windows(const TokenFile& tokens, const EvaluateOptions& options) {
  const int64_t stride = options.stride > 0 ? options.stride : options.context;
  auto bounds = tokens.documents();
  bounds.push_back(tokens.size());
  std::vector<Window> found;
  int64_t total = 0;
  const auto enough = [&] { return options.limit > 0 && total >= options.limit; };
  for (size_t i = 0; i + 1 < bounds.size(); ++i) {
    const int64_t predictions = bounds[i + 1] - bounds[i] - 1;
    const int64_t length = std::min(options.context, predictions);
    for (int64_t done = 0; done < predictions && !enough();) {
      const int64_t end = done == 0 ? length : std::min(done + stride, predictions);
      found.push_back({bounds[i] + end - length, length, end - done});
      total += end - done;
      done = end;
    }
  }
  return found;
}

struct Call {
  at::Tensor tokens, targets;  // [B, T], or packed [1, T]
  at::Tensor scored;           // which of the flattened positions count; undefined: all
  Batch batch;
  int64_t count = 0;  // how many count
};

Call make_call(const TokenFile& file, const std::vector<Window>& part, const std::vector<int32_t>& begin) {
  const at::Tensor marks = at::tensor(begin, at::kLong);
  Call call;
  std::vector<at::Tensor> inputs, targets, scored;
  std::vector<int64_t> bounds = {0};
  bool equal = true;
  for (const auto& window : part) {
    const auto read = file.read(window.begin, window.length + 1);
    inputs.insert(inputs.end(), {marks, read.slice(0, 0, window.length)});
    targets.insert(targets.end(), {marks, read.slice(0, 1)});  // what follows a mark is not scored
    bounds.push_back(bounds.back() + marks.size(0) + window.length);
    scored.push_back(at::arange(bounds.back() - window.scored, bounds.back(), at::kLong));
    call.count += window.scored;
    equal = equal && window.length == part[0].length;
  }
  const int64_t rows = equal ? static_cast<int64_t>(part.size()) : 1;
  call.tokens = at::cat(inputs).view({rows, -1});
  call.targets = at::cat(targets);
  if (call.count != call.targets.size(0)) call.scored = at::cat(scored);
  if (!equal) call.batch.cu_seqlens = at::tensor(bounds, at::kLong);
  return call;
}

void score(LanguageModel& model, Call call, Evaluation& result) {
  const auto device = model.device();
  if (call.batch.cu_seqlens) call.batch.cu_seqlens = call.batch.cu_seqlens->to(device);
  auto hidden = model.hidden(call.tokens.to(device), call.batch).flatten(0, 1);
  if (!call.scored.defined()) return add_scores(model, hidden, call.targets, result);
  add_scores(model, hidden.index_select(0, call.scored.to(device)), call.targets.index_select(0, call.scored), result);
}

}  // namespace

void add_scores(const LanguageModel& model, const at::Tensor& hidden, const at::Tensor& targets, Evaluation& result) {
  constexpr int64_t kSliceElements = 1 << 24;
  const int64_t slice = std::max<int64_t>(1, kSliceElements / model.config().vocabulary);
  const at::Tensor all = targets.to(hidden.device());
  for (int64_t begin = 0; begin < hidden.size(0); begin += slice) {
    auto logits = model.logits(hidden.slice(0, begin, begin + slice).unsqueeze(0)).squeeze(0);
    if (logits.scalar_type() != at::kDouble) logits = logits.to(at::kFloat);
    const at::Tensor wanted = all.slice(0, begin, begin + slice);
    result.total +=
        at::cross_entropy_loss(logits, wanted, {}, at::Reduction::None).to(at::kDouble).sum().item<double>();
    result.right += logits.argmax(-1).eq(wanted).sum().item<int64_t>();
  }
  result.tokens += targets.numel();
}

Evaluation evaluate_loss(LanguageModel& model, const TokenFile& tokens, const EvaluateOptions& options) {
  const at::NoGradGuard no_grad;
  check(model, options);
  const auto all = windows(tokens, options);
  fail_input_if(all.empty(), "[evaluate] the text is too short: no document has two tokens");
  int64_t scored = 0;
  for (const auto& window : all) scored += window.scored;
  Evaluation result;
  std::vector<Window> part;
  int64_t part_tokens = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    part.push_back(all[i]);
    part_tokens += all[i].length;
    const bool full = i + 1 == all.size() || part_tokens + all[i + 1].length > options.tokens_per_call;
    if (!full) continue;
    const auto call = make_call(tokens, part, options.begin);
    score(model, call, result);
    if (options.progress) options.progress(result.tokens, scored);
    part.clear();
    part_tokens = 0;
  }
  return result;
}

}  // namespace cortado
