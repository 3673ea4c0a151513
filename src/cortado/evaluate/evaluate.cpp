#include "cortado/evaluate/evaluate.h"

#include <c10/core/GradMode.h>

#include <algorithm>

#include "cortado/base/error.h"

namespace cortado {
namespace {

// The input is tokens begin .. begin + length - 1, the targets are one token further on. The last `scored` targets
// count.
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

// Puts every prediction of every document into exactly one window. All windows of a document have equal lengths, so
// that they can run together: the last one begins earlier instead of being shorter.
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
  at::Tensor scored;           // flattened positions that are scored; undefined: all
  Batch batch;
  int64_t count = 0;  // number of scored positions
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
    targets.insert(targets.end(), {marks, read.slice(0, 1)});  // targets after a mark are not scored
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

void check_window(const LanguageModel& model, const at::Tensor& tokens, const ContextLossOptions& options) {
  const auto& config = model.config();
  fail_input_if(options.length < 2 || options.count < 1 || options.tokens_per_call < 1,
                "[evaluate] a length must be >= 2, the tokens to predict and those in a call >= 1, got ",
                options.length, ", ", options.count, " and ", options.tokens_per_call);
  fail_input_if(options.first < options.length / 2, "[evaluate] the first token to predict, ", options.first,
                ", must have half a length, ", options.length / 2, ", before it");
  fail_input_if(options.first + options.count > tokens.size(0), "[evaluate] the text has ", tokens.size(0), " tokens, ",
                options.first + options.count, " are needed");
  const int64_t longest = options.length + static_cast<int64_t>(options.begin.size());
  fail_input_if(config.positions == PositionKind::kLearned && longest > config.context, "[evaluate] length ", longest,
                " is beyond the model's learned positions: it has ", config.context);
}

// Returns the sum over all processes.
Evaluation summed(const Evaluation& own, const Ranks& ranks) {
  if (!ranks.several()) return own;
  const at::Tensor sums = at::tensor({double(own.tokens), own.total, double(own.right)}, at::kDouble);
  ranks.sum(sums);
  const double* all = sums.const_data_ptr<double>();
  return {int64_t(all[0]), all[1], int64_t(all[2])};
}

// Several windows of one length, run as a batch.
class Windows {
 public:
  // Makes `rows` windows. Each reads the marks and `half` tokens and then predicts `count` tokens; the first window's
  // predictions begin at token `first`.
  Windows(LanguageModel& model, const at::Tensor& tokens, const at::Tensor& marks, int64_t first, int64_t rows,
          int64_t count, int64_t half)
      : model_(model), rows_(rows), half_(marks.size(0) + half), length_(half_ + count - 1) {
    // [rows, marks + half + count]: a window's input and, one token further on, its targets.
    tokens_ = at::cat(
        {marks.expand({rows, -1}), tokens.slice(0, first - half, first + rows * count).unfold(0, half + count, count)},
        1);
  }

  // Adds the loss to `result`. Calls `read` with the number of tokens after each piece.
  template <typename Read>
  void score(int64_t tokens_per_call, Evaluation& result, const Read& read) {
    const int64_t piece = std::max<int64_t>(1, tokens_per_call / rows_);
    ModelState state;
    if (piece < length_) state = model_.zero_state(rows_);
    for (int64_t begin = 0; begin < length_; begin += piece) {
      const int64_t end = std::min(begin + piece, length_);
      const at::Tensor input = tokens_.slice(1, begin, end).contiguous().to(model_.device());
      const at::Tensor hidden = model_.hidden(input, {}, piece < length_ ? &state : nullptr);
      // Input token j predicts token j + 1; predictions are scored from token `half_` on.
      const int64_t scored = std::max(begin, half_ - 1);
      if (scored < end) {
        const at::Tensor targets = tokens_.slice(1, scored + 1, end + 1).flatten();
        add_scores(model_, hidden.slice(1, scored - begin).flatten(0, 1), targets, result);
      }
      read(rows_ * (end - begin));
    }
  }

 private:
  LanguageModel& model_;
  int64_t rows_, half_, length_;  // half_: tokens that are only read
  at::Tensor tokens_;
};

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
  int64_t part_tokens = 0, calls = 0, done = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    part.push_back(all[i]);
    part_tokens += all[i].length;
    const bool full = i + 1 == all.size() || part_tokens + all[i + 1].length > options.tokens_per_call;
    if (!full) continue;
    const auto call = make_call(tokens, part, options.begin);
    if (calls++ % options.ranks.size() == options.ranks.rank()) score(model, call, result);
    done += call.count;
    if (options.progress) options.progress(done, scored);
    part.clear();
    part_tokens = 0;
  }
  return summed(result, options.ranks);
}

Evaluation evaluate_in_context(LanguageModel& model, const at::Tensor& tokens, const ContextLossOptions& options) {
  const at::NoGradGuard no_grad;
  check_window(model, tokens, options);
  const int64_t half = options.length / 2, whole = options.count / half, rest = options.count % half;
  const Ranks& ranks = options.ranks;
  // As many windows per call as fit, but few enough that every process gets a turn.
  const int64_t most =
      std::clamp<int64_t>(options.tokens_per_call / (2 * half - 1), 1, std::max<int64_t>(1, whole / ranks.size()));
  const at::Tensor marks = at::tensor(options.begin, at::kLong);
  const int64_t read_only = marks.size(0) + half - 1;
  const int64_t total = whole * (read_only + half) + (rest ? read_only + rest : 0);
  Evaluation result;
  int64_t done = 0, turns = 0;
  const auto read = [&](int64_t count) {
    done += count * ranks.size();  // the other processes read about as many meanwhile
    if (options.progress) options.progress(std::min(done, total), total);
  };
  const auto score = [&](int64_t first, int64_t rows, int64_t count) {
    if (turns++ % ranks.size() != ranks.rank()) return;
    Windows(model, tokens, marks, first, rows, count, half).score(options.tokens_per_call, result, read);
  };
  for (int64_t i = 0; i < whole; i += most) score(options.first + i * half, std::min(most, whole - i), half);
  if (rest) score(options.first + whole * half, 1, rest);
  return summed(result, ranks);
}

}  // namespace cortado
