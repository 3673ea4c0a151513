#include "cortado/evaluate/ruler.h"

#include <algorithm>
#include <iostream>
#include <limits>
#include <optional>
#include <set>
#include <span>
#include <tuple>

#include "cortado/base/error.h"
#include "cortado/base/human.h"
#include "cortado/base/progress.h"
#include "cortado/base/signals.h"
#include "cortado/base/stopwatch.h"
#include "cortado/evaluate/answers.h"
#include "cortado/tokenizers/chat.h"

namespace cortado {
namespace {

// The unanswered questions of one task and length.
struct RulerPart {
  RulerKind kind;
  int64_t length;
  std::vector<int64_t> indices;
};

// A question as the model reads it.
struct RulerPrompt {
  int64_t index;
  RulerQuestion question;
  std::string input;  // with the chat template, without the answer prefix
  std::vector<int32_t> tokens;
};

// The fields of a result that are read back.
struct RulerRecord {
  std::string model, task;
  int64_t length, index, prompt_tokens;
  double score, state_bytes, seconds;
};

std::vector<RulerRecord> records_of(const ResultFile& file) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  std::vector<RulerRecord> records;
  for (const Json& result : file.results()) {
    JsonReader reader(result, "--out");
    records.push_back({.model = reader.text("model"),
                       .task = reader.text("task"),
                       .length = reader.integer("length", 1, kMost),
                       .index = reader.integer("index", 0, kMost),
                       .prompt_tokens = reader.integer("prompt_tokens", 1, kMost),
                       // Results written before questions had several references only have a boolean.
                       .score = reader.has("score") ? reader.number("score", 0, 1) : double(reader.boolean("correct")),
                       .state_bytes = reader.number("state_bytes", 0, 1e30),
                       .seconds = reader.number("seconds", 0, 1e30)});
  }
  return records;
}

class RulerEvaluation {
 public:
  RulerEvaluation(const RulerRequest& request, const RulerMaterial& material, const OpenModel& subject,
                  ResultFile& file)
      : request_(request), material_(material), subject_(subject), file_(file) {
    if (request.plain || !subject.tokenizer->special().chat.taught()) return;
    chat_.emplace(*subject.tokenizer);
    chat_->need_template();
  }

  void ask_all() {
    const auto all = pending();
    const auto& config = subject_.model->config();
    request_.ranks.agree([&] {
      for (const auto& part : all) {
        fail_input_if(config.positions == PositionKind::kLearned && part.length > config.context, "[--lengths] ",
                      part.length, " is beyond the model's learned positions: it has ", config.context);
      }
    });
    for (const auto& part : all) total_ += part.length * static_cast<int64_t>(part.indices.size());
    bar_.emplace(ProgressBar::Options{
        .label = subject_.name, .total = total_, .unit = "tokens", .quiet = !request_.ranks.first()});
    for (const auto& part : all) {
      const RulerCount count = [&](const RulerQuestion& q) { return static_cast<int64_t>(encode(q).size()); };
      const RulerQuestions questions(part.kind, {part.length, request_.seed, count}, material_);
      std::vector<RulerPrompt> prompts;
      request_.ranks.agree([&] { prompts = prompts_of(part, questions); });
      const auto turn = static_cast<size_t>(request_.batch * request_.ranks.size());
      for (size_t begin = 0; begin < prompts.size(); begin += turn) {
        ask_turn(part, std::span(prompts).subspan(begin, std::min(turn, prompts.size() - begin)));
      }
    }
  }

 private:
  std::vector<RulerPart> pending() const {
    std::set<std::tuple<std::string, int64_t, int64_t>> done;
    for (const RulerRecord& record : records_of(file_)) {
      if (record.model == subject_.name) done.emplace(record.task, record.length, record.index);
    }
    std::vector<RulerPart> found;
    for (const auto& name : request_.tasks) {
      for (const int64_t length : request_.lengths) {
        RulerPart part{ruler_kind(name), length, {}};
        for (int64_t i = 0; i < request_.samples; ++i) {
          if (!done.contains({name, length, i})) part.indices.push_back(i);
        }
        if (!part.indices.empty()) found.push_back(std::move(part));
      }
    }
    return found;
  }

  jinja::Text rendered(const RulerQuestion& question) const {
    return chat_ ? chat_->render(Json::array({chat_message("user", question.text)})) : jinja::Text(question.text);
  }

  std::vector<int32_t> encode(const RulerQuestion& question) const {
    jinja::Text text = rendered(question);
    text.write(question.answer_prefix);
    return chat_ ? chat_->encode(text).tokens : encode_prompt(*subject_.tokenizer, text.bytes());
  }

  // Sorts prompts by their tokens, so that those of a batch share a long prefix, which is read once.
  std::vector<RulerPrompt> prompts_of(const RulerPart& part, const RulerQuestions& questions) const {
    std::vector<RulerPrompt> prompts;
    for (const int64_t index : part.indices) {
      if (request_.poll) request_.poll();
      const auto question = questions.make(index);
      if (question) prompts.push_back({index, *question, rendered(*question).bytes(), encode(*question)});
    }
    if (prompts.empty()) questions.refuse(part.indices.front());
    if (prompts.size() < part.indices.size() && request_.ranks.first()) {
      std::cerr << part.indices.size() - prompts.size() << " of " << part.indices.size() << " questions of "
                << part.kind.name << " don't fit " << part.length << " tokens and are left out" << std::endl;
    }
    std::sort(prompts.begin(), prompts.end(), [](const auto& a, const auto& b) { return a.tokens < b.tokens; });
    return prompts;
  }

  // Each process answers one batch; the results of all are written together.
  void ask_turn(const RulerPart& part, std::span<const RulerPrompt> prompts) {
    const Ranks& ranks = request_.ranks;
    const auto count = prompts.size(), share = (count + ranks.size() - 1) / ranks.size();
    const size_t begin = std::min(share * ranks.rank(), count), end = std::min(begin + share, count);
    std::vector<Json> results;
    if (begin < end) results = ask(part, prompts.subspan(begin, end - begin));
    if (ranks.several()) {
      const auto all = ranks.gather(Json(results).dump(-1, ' ', false, Json::error_handler_t::replace));
      results.clear();
      for (const std::string& text : all) {
        for (const Json& result : parse_json(text, "answers")) results.push_back(result);
      }
    }
    for (const Json& result : results) right_ += result.at("score").get<double>();
    asked_ += static_cast<int64_t>(results.size());
    ranks.agree([&] { file_.append(results); });
    done_ += part.length * static_cast<int64_t>(count);
    bar_->update(done_, concat(fixed(100 * right_ / double(asked_), 1), "% right"));
  }

  std::vector<Json> ask(const RulerPart& part, std::span<const RulerPrompt> prompts) {
    const Stopwatch watch;
    std::vector<std::vector<int32_t>> tokens;
    for (const RulerPrompt& prompt : prompts) tokens.push_back(prompt.tokens);
    const std::string state = asked_ ? concat(fixed(100 * right_ / double(asked_), 1), "% right") : "";
    AnswerOptions options{.tokens = part.kind.answer_tokens,
                          .stops = subject_.tokenizer->special().stops,
                          .vocabulary = subject_.tokenizer->vocabulary()};
    options.progress = [&](int64_t count) {
      if (interrupt_requested()) bar_->finish();
      if (request_.poll) request_.poll();
      bar_->update(done_ + count * request_.ranks.size(), state);
    };
    const auto answers = answer_all(*subject_.model, tokens, options);
    std::vector<Json> results;
    for (size_t i = 0; i < prompts.size(); ++i) {
      results.push_back(result_of(part, prompts[i], answers.tokens[i]));
      results.back()["state_bytes"] = static_cast<int64_t>(answers.state_bytes);
      results.back()["seconds"] = watch.seconds() / static_cast<double>(prompts.size());
    }
    return results;
  }

  Json result_of(const RulerPart& part, const RulerPrompt& prompt, const std::vector<int32_t>& answer) const {
    const std::string text = subject_.tokenizer->decode(answer);
    const RulerQuestion& question = prompt.question;
    const double score = ruler_score(text, question.references, part.kind.any_reference);
    Json result = {{"model", subject_.name},
                   {"task", part.kind.name},
                   {"length", part.length},
                   {"index", prompt.index},
                   {"input", prompt.input},
                   {"answer_prefix", question.answer_prefix},
                   {"outputs", question.references},
                   {"pred", text},
                   {"score", score},
                   {"correct", score == 1},
                   {"haystack", question.size},
                   {"prompt_tokens", prompt.tokens.size()},
                   {"answer_tokens", answer.size()}};
    if (question.depths.size() == 1) result["depth"] = question.depths.front();
    if (question.depths.size() > 1) result["depth"] = question.depths;
    return result;
  }

  const RulerRequest& request_;
  const RulerMaterial& material_;
  const OpenModel& subject_;
  ResultFile& file_;
  std::optional<Chat> chat_;
  std::optional<ProgressBar> bar_;
  int64_t total_ = 0, done_ = 0, asked_ = 0;
  double right_ = 0;
};

}  // namespace

void ask_ruler(const RulerRequest& request, const RulerMaterial& material, const OpenModel& subject, ResultFile& file) {
  RulerEvaluation(request, material, subject, file).ask_all();
}

RulerCells summed(const ResultFile& file) {
  RulerCells cells;
  for (const RulerRecord& record : records_of(file)) {
    RulerCell& cell = cells[record.model][{record.task, record.length}];
    ++cell.samples;
    cell.score += record.score;
    cell.prompt_tokens += record.prompt_tokens;
    cell.seconds += record.seconds;
    cell.state_bytes += record.state_bytes;
  }
  return cells;
}

}  // namespace cortado
