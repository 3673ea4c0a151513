#include "cortado/serve/writer.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>

namespace cortado {

ScoredToken score_token(const at::Tensor& logits, int32_t token, int64_t count, int64_t vocabulary) {
  const at::Tensor scores = at::log_softmax(logits, -1);
  ScoredToken result{.token = token, .logprob = scores[token].item<float>()};
  if (count == 0) return result;
  const auto [values, tokens] = scores.narrow(0, 0, vocabulary).topk(std::min(count, vocabulary));
  for (int64_t i = 0; i < values.size(0); ++i) {
    result.likeliest.emplace_back(static_cast<int32_t>(tokens[i].item<int64_t>()), values[i].item<float>());
  }
  return result;
}

namespace {

SamplingOptions sampling_of(const Request& request, int64_t choice) {
  SamplingOptions sampling = request.sampling;
  sampling.seed += choice;
  return sampling;
}

// An answer that begins a new text has no tokens before it.
TextWriter text_of(const Request& request, const std::shared_ptr<const Tokenizer>& tokenizer) {
  TextOptions options{.stops = request.stops};
  if (tokenizer && !request.ignore_end) options.stop_tokens = tokenizer->special().stops;
  const std::span<const int32_t> before = request.tokens;
  return TextWriter(tokenizer, request.begins_text ? before.first(0) : before, std::move(options));
}

std::unique_ptr<GrammarState> state_of(const Request& request) {
  return request.grammar ? request.grammar->begin(!request.ignore_end) : nullptr;
}

}  // namespace

Writer::Writer(std::shared_ptr<Answer> answer, int64_t choice, std::shared_ptr<const Tokenizer> tokenizer,
               int64_t vocabulary, at::Tensor logits)
    : answer_(std::move(answer)),
      choice_(choice),
      vocabulary_(vocabulary),
      tokenizer_(std::move(tokenizer)),
      sampler_(sampling_of(answer_->request(), choice)),
      text_(text_of(answer_->request(), tokenizer_)),
      grammar_(state_of(answer_->request())),
      sequence_(answer_->request().tokens),
      prompt_(sequence_.size()),
      logits_(std::move(logits)),
      last_{.choice = choice} {}

void Writer::show(AnswerPart& part, int32_t token) {
  part.text = text_.push(token);
  if (text_.ended_by_token()) return;
  if (answer_->request().likeliest) add_score(token);
  const std::string& text = text_.decoded();
  for (Waiting& waiting : waiting_) {
    if (waiting.end > 0 || text.empty()) continue;
    waiting = {std::move(waiting.score), decoded_, decoded_ + text.size(), text};
  }
  decoded_ += text.size();
  shown_ += part.text.size();
  tell_scores(part);
}

void Writer::add_score(int32_t token) {
  ScoredToken score = score_token(logits_, token, *answer_->request().likeliest, vocabulary_);
  if (tokenizer_ && tokenizer_->is_special(token)) {
    score.text = "";
  } else if (tokenizer_) {
    std::string first = tokenizer_->decode({token});
    const bool begins = answer_->request().begins_text && !worded_;
    if (begins && first != tokenizer_->piece(token)) score.text = std::move(first);
    worded_ = true;
  }
  waiting_.push_back({.score = std::move(score)});
}

// Sends scores of tokens whose text has been sent. Text that is held back as a possible beginning of a stop string has
// no scores yet.
void Writer::tell_scores(AnswerPart& part) {
  while (!waiting_.empty() && (!tokenizer_ || (waiting_.front().end > 0 && waiting_.front().end <= shown_))) {
    part.scores.push_back(std::move(waiting_.front().score));
    waiting_.pop_front();
  }
}

// `stopped`: a stop string ended the answer; its own tokens get no scores.
void Writer::tell_last_scores(AnswerPart& part, bool stopped) {
  tell_scores(part);
  for (Waiting& waiting : waiting_) {
    if (stopped && (waiting.end == 0 || waiting.begin >= shown_)) continue;
    if (stopped) waiting.score.text = waiting.text.substr(0, shown_ - waiting.begin);
    part.scores.push_back(std::move(waiting.score));
  }
  waiting_.clear();
}

// Copies the logits before changing them, because the prompt and the scores use them, too.
int32_t Writer::sample() {
  const std::span<const int32_t> read = sequence_;
  at::Tensor scores = logits_.narrow(0, 0, vocabulary_);
  if (grammar_) {
    scores = scores.clone();
    grammar_->restrict({scores.mutable_data_ptr<float>(), static_cast<size_t>(vocabulary_)});
  }
  while (true) {
    const int32_t token = sampler_.sample(scores, read, read.size(), read.subspan(prompt_));
    if (!grammar_ || grammar_->accept(token)) return token;
    scores[token] = -std::numeric_limits<float>::infinity();
  }
}

// Chooses a token. Returns how the answer ends with it, if it does.
std::optional<Finish> Writer::choose(AnswerPart& part) {
  const Request& request = answer_->request();
  if (request.most_tokens == 0) return Finish::kLength;
  const int32_t token = sample();
  sequence_.push_back(token);
  show(part, token);
  if (text_.ended() || (grammar_ && grammar_->ended())) return Finish::kStop;
  if (tokens() >= request.most_tokens) return Finish::kLength;
  return std::nullopt;
}

std::optional<int32_t> Writer::write() {
  AnswerPart part{.choice = choice_};
  part.finish = answer_->cancelled() ? std::optional(Finish::kCancelled)
                : answer_->late()    ? std::optional(Finish::kTimeout)
                                     : choose(part);
  if (part.finish) {
    cut_ = part.finish == Finish::kCancelled || part.finish == Finish::kTimeout;
    const std::string rest = text_.finish();
    shown_ += rest.size();
    part.text += rest;
    if (text_.ended_by_string()) part.finish = Finish::kStop;
    tell_last_scores(part, text_.ended_by_string());
    last_ = std::move(part);
    return std::nullopt;
  }
  if (!part.text.empty() || !part.scores.empty()) answer_->push(std::move(part));
  return sequence_.back();
}

std::vector<int32_t> Writer::read_tokens() const {
  auto tokens = sequence_;
  // An answer that was cancelled or timed out ends between two tokens; its last token has been read.
  if (tokens.size() > prompt_ && !cut_) tokens.pop_back();
  return tokens;
}

void Writer::finish(std::shared_ptr<const Snapshot> snapshot) {
  const auto begin = sequence_.begin() + static_cast<std::ptrdiff_t>(prompt_);
  answer_->finish(std::move(last_), {.tokens = {begin, sequence_.end()}, .snapshot = std::move(snapshot)});
}

}  // namespace cortado
