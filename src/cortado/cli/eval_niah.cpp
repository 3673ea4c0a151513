// cortado eval niah: needles in haystacks, asked of several models.
#include <c10/core/InferenceMode.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <tuple>

#include "cortado/base/error.h"
#include "cortado/base/files.h"
#include "cortado/base/hash.h"
#include "cortado/base/human.h"
#include "cortado/base/progress.h"
#include "cortado/base/signals.h"
#include "cortado/base/stopwatch.h"
#include "cortado/base/table.h"
#include "cortado/cli/commands.h"
#include "cortado/cli/several_models.h"
#include "cortado/evaluate/answers.h"
#include "cortado/tasks/niah.h"
#include "cortado/tokenizers/chat.h"

namespace cortado {

namespace {

constexpr int64_t kAnswerTokens = 128;
constexpr int64_t kNiahSeed = 42;

struct NiahCommand {
  std::shared_ptr<SeveralModels> models;
  std::vector<std::string> tasks = {"single_1"};
  std::vector<int64_t> lengths = {512, 1024, 2048, 4096};
  int64_t samples = 100;
  int64_t batch = 8;
  std::string haystack;
  bool plain = false;
  bool json = false;
};

// The questions' texts.
struct NiahMaterial {
  NiahWords words;
  Essay essay;
};

// Questions of one task and length that have no answer yet.
struct NiahPart {
  NiahTask task;
  int64_t length;
  std::vector<int64_t> indices;
};

// A question as a model reads it.
struct NiahPrompt {
  int64_t index;
  NiahQuestion question;
  std::string input;  // with the chat template, without the answer's prefix
  std::vector<int32_t> tokens;
};

// A line of the file of results, as far as it is read back.
struct NiahRecord {
  std::string model, task;
  int64_t length, index, prompt_tokens;
  bool correct;
  double state_bytes, seconds;
};

std::vector<NiahRecord> records_of(const ResultFile& file) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  std::vector<NiahRecord> records;
  for (const Json& result : file.results()) {
    JsonReader reader(result, "--out");
    records.push_back({.model = reader.text("model"),
                       .task = reader.text("task"),
                       .length = reader.integer("length", 1, kMost),
                       .index = reader.integer("index", 0, kMost),
                       .prompt_tokens = reader.integer("prompt_tokens", 1, kMost),
                       .correct = reader.boolean("correct"),
                       .state_bytes = reader.number("state_bytes", 0, 1e30),
                       .seconds = reader.number("seconds", 0, 1e30)});
  }
  return records;
}

class Asker {
 public:
  Asker(const NiahCommand& command, const NiahMaterial& material, OpenModel opened, ResultFile& file)
      : command_(command), material_(material), opened_(std::move(opened)), file_(file) {
    if (!command.plain && !opened_.tokenizer->special().chat.name.empty()) chat_.emplace(*opened_.tokenizer);
  }

  void ask_all() {
    const auto all = pending();
    const auto& config = opened_.model->config();
    for (const auto& part : all) {
      fail_input_if(config.positions == PositionKind::kLearned && part.length > config.context, "[--lengths] ",
                    part.length, " is beyond the model's learned positions: it has ", config.context);
    }
    for (const auto& part : all) total_ += part.length * static_cast<int64_t>(part.indices.size());
    bar_.emplace(ProgressBar::Options{.label = opened_.name, .total = total_, .unit = "tokens"});
    for (const auto& part : all) {
      const NiahQuestions questions({part.task, part.length, kAnswerTokens, seed()}, material_.words, material_.essay,
                                    [&](const NiahQuestion& q) { return static_cast<int64_t>(encode(q).size()); });
      const auto prompts = prompts_of(part, questions);
      const auto batch = static_cast<size_t>(command_.batch);
      for (size_t begin = 0; begin < prompts.size(); begin += batch) {
        ask(part, std::span(prompts).subspan(begin, std::min(batch, prompts.size() - begin)));
      }
    }
  }

 private:
  int64_t seed() const { return command_.models->options->common->seed_or(kNiahSeed); }

  std::vector<NiahPart> pending() const {
    std::set<std::tuple<std::string, int64_t, int64_t>> done;
    for (const NiahRecord& record : records_of(file_)) {
      if (record.model == opened_.name) done.emplace(record.task, record.length, record.index);
    }
    std::vector<NiahPart> found;
    for (const auto& name : command_.tasks) {
      for (const int64_t length : command_.lengths) {
        NiahPart part{niah_task(name), length, {}};
        for (int64_t i = 0; i < command_.samples; ++i) {
          if (!done.contains({name, length, i})) part.indices.push_back(i);
        }
        if (!part.indices.empty()) found.push_back(std::move(part));
      }
    }
    return found;
  }

  std::string rendered(const NiahQuestion& question) const {
    return chat_ ? chat_->render({{"user", question.text}}, true) : question.text;
  }

  std::vector<int32_t> encode(const NiahQuestion& question) const {
    const std::string text = rendered(question) + question.answer_prefix;
    return chat_ ? opened_.tokenizer->encode(text) : encode_prompt(*opened_.tokenizer, text);
  }

  // In the order of their tokens, so that those of a batch begin alike for as long as possible: that is read once.
  std::vector<NiahPrompt> prompts_of(const NiahPart& part, const NiahQuestions& questions) const {
    std::vector<NiahPrompt> prompts;
    for (const int64_t index : part.indices) {
      stop_if_interrupted(*command_.models);
      const auto question = questions.make(index);
      prompts.push_back({index, question, rendered(question), encode(question)});
    }
    std::sort(prompts.begin(), prompts.end(), [](const auto& a, const auto& b) { return a.tokens < b.tokens; });
    return prompts;
  }

  // A batch: all of its results are written together.
  void ask(const NiahPart& part, std::span<const NiahPrompt> prompts) {
    const Stopwatch watch;
    std::vector<std::vector<int32_t>> tokens;
    for (const NiahPrompt& prompt : prompts) tokens.push_back(prompt.tokens);
    const std::string state = asked_ ? concat(right_, " of ", asked_, " right") : "";
    AnswerOptions options{.tokens = kAnswerTokens,
                          .stops = opened_.tokenizer->special().stops,
                          .vocabulary = opened_.tokenizer->vocabulary()};
    options.progress = [&](int64_t count) {
      if (interrupt_requested()) bar_->finish();
      stop_if_interrupted(*command_.models);
      bar_->update(done_ + count, state);
    };
    const auto answers = answer_all(*opened_.model, tokens, options);
    std::vector<Json> results;
    for (size_t i = 0; i < prompts.size(); ++i) {
      results.push_back(result_of(part, prompts[i], answers.tokens[i]));
      results.back()["state_bytes"] = static_cast<int64_t>(answers.state_bytes);
      results.back()["seconds"] = watch.seconds() / static_cast<double>(prompts.size());
    }
    file_.append(results);
    done_ += part.length * static_cast<int64_t>(prompts.size());
    bar_->update(done_, concat(right_, " of ", asked_, " right"));
  }

  Json result_of(const NiahPart& part, const NiahPrompt& prompt, const std::vector<int32_t>& answer) {
    const std::string text = opened_.tokenizer->decode(answer);
    const bool correct = niah_correct(text, prompt.question.value);
    ++asked_;
    right_ += correct;
    return {{"model", opened_.name},
            {"task", part.task.name},
            {"length", part.length},
            {"index", prompt.index},
            {"input", prompt.input},
            {"answer_prefix", prompt.question.answer_prefix},
            {"outputs", Json::array({prompt.question.value})},
            {"pred", text},
            {"correct", correct},
            {"depth", prompt.question.depth},
            {"haystack", prompt.question.size},
            {"prompt_tokens", prompt.tokens.size()},
            {"answer_tokens", answer.size()}};
  }

  const NiahCommand& command_;
  const NiahMaterial& material_;
  OpenModel opened_;
  ResultFile& file_;
  std::optional<Chat> chat_;
  std::optional<ProgressBar> bar_;
  int64_t total_ = 0, done_ = 0, asked_ = 0, right_ = 0;
};

// What the results of one model, task and length come to.
struct NiahCell {
  int64_t samples = 0, correct = 0, prompt_tokens = 0;
  double seconds = 0, state_bytes = 0;

  double percent() const { return 100.0 * static_cast<double>(correct) / static_cast<double>(samples); }
};
using NiahColumn = std::pair<std::string, int64_t>;  // task, length
using NiahCells = std::map<std::string, std::map<NiahColumn, NiahCell>>;

NiahCells summed(const ResultFile& file) {
  NiahCells cells;
  for (const NiahRecord& record : records_of(file)) {
    NiahCell& cell = cells[record.model][{record.task, record.length}];
    ++cell.samples;
    cell.correct += record.correct;
    cell.prompt_tokens += record.prompt_tokens;
    cell.seconds += record.seconds;
    cell.state_bytes += record.state_bytes;
  }
  return cells;
}

void print_json(const ResultFile& file, NiahCells cells) {
  Json all = Json::array();
  for (const auto& name : models_in(file)) {
    for (const auto& [column, cell] : cells[name]) {
      const auto count = static_cast<double>(cell.samples);
      all.push_back({{"model", name},
                     {"task", column.first},
                     {"length", column.second},
                     {"samples", cell.samples},
                     {"correct", cell.correct},
                     {"percent", cell.percent()},
                     {"prompt_tokens", static_cast<double>(cell.prompt_tokens) / count},
                     {"state_bytes", cell.state_bytes / count},
                     {"seconds", cell.seconds}});
    }
  }
  std::cout << all.dump() << std::endl;
}

void print_table(const ResultFile& file, NiahCells cells) {
  std::set<NiahColumn> columns;
  for (const auto& [name, row] : cells) {
    for (const auto& [column, cell] : row) columns.insert(column);
  }
  std::vector<std::string> header = {"right, %"};
  for (const auto& [task, length] : columns) header.push_back(concat(task, " ", with_commas(length)));
  Table table(header);
  for (const auto& name : models_in(file)) {
    std::vector<std::string> row = {name};
    for (const auto& column : columns) {
      const NiahCell& cell = cells[name][column];
      row.push_back(cell.samples ? fixed(cell.percent(), 1) : "");
    }
    table.add_row(row);
  }
  std::cout << table.text() << std::flush;
}

bool needs_essay(const NiahCommand& command) {
  return std::any_of(command.tasks.begin(), command.tasks.end(),
                     [](const auto& name) { return niah_task(name).haystack == HaystackKind::kEssay; });
}

NiahMaterial read_material(const NiahCommand& command, ResultFile& file) {
  NiahMaterial material;
  const std::string adjectives = shipped_file("data/words/adjectives.txt"),
                    nouns = shipped_file("data/words/nouns.txt");
  material.words = NiahWords::read(adjectives, nouns);
  file.require("words", hash_text(read_file(adjectives) + read_file(nouns)));
  if (!needs_essay(command)) return material;
  const std::string text = read_file(command.haystack);
  material.essay = Essay(text);
  file.require("essay", hash_text(text));
  return material;
}

void run_niah(const NiahCommand& command) {
  const c10::InferenceMode inference;
  // Everything that can be refused is refused before a model is read.
  const auto& models = *command.models;
  models.check();
  fail_input_if(needs_essay(command) && command.haystack.empty(),
                "[--haystack] single_2 and single_3 hide the needle in a text: name a file");
  ResultFile file(models.out);
  file.require("command", "eval niah");
  file.require("seed", models.options->common->seed_or(kNiahSeed));
  file.require("plain", command.plain);
  const NiahMaterial material = read_material(command, file);
  catch_interrupts();
  const int64_t longest = *std::max_element(command.lengths.begin(), command.lengths.end());
  for (size_t i = 0; i < models.runs.size(); ++i) {
    Asker(command, material, open_for(models, i, longest, file), file).ask_all();
  }
  if (command.json) {
    print_json(file, summed(file));
  } else {
    print_table(file, summed(file));
  }
}

constexpr const char* kNiahFooter =
    "RULER's needle tasks: a text of --lengths tokens, prompt and 128 for the answer together, hides one sentence with "
    "a value, and the\n"
    "model is asked for it. single_1: a seven-digit number in noise; single_2: the same in the text of --haystack; "
    "single_3: a UUID there.\n"
    "Answers are greedy; one is right when the value occurs in it. A model that was taught to chat is asked in its own "
    "template.\n"
    "The table shows everything that --out holds, models of earlier calls too.\n\nExamples:\n"
    "  cortado eval niah models/smollm2 --lengths 512,1024 --samples 10\n"
    "  cortado eval niah models/smollm2 runs/converted --tasks single_1,single_2 --haystack essays.txt --out "
    "niah.jsonl";

}  // namespace

void add_eval_niah_command(CLI::App& eval) {
  auto command = std::make_shared<NiahCommand>();
  auto& niah = *eval.add_subcommand("niah", "Hide needles in haystacks, and measure what a model finds again (RULER)");
  niah.footer(kNiahFooter);
  command->models = add_several_models(niah);
  niah.add_option("--tasks", command->tasks, "single_1, single_2, single_3, separated by commas")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::IsMember({"single_1", "single_2", "single_3"}))
      ->capture_default_str();
  niah.add_option("--lengths", command->lengths, "tokens of prompt and answer, separated by commas")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 24))
      ->capture_default_str();
  niah.add_option("--samples", command->samples, "questions of each task and length")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  niah.add_option("--batch", command->batch, "questions asked at once")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  niah.add_option("--haystack", command->haystack, "the text that single_2 and single_3 hide their needles in");
  niah.add_flag("--plain", command->plain, "use no chat template, even for a model that has one");
  niah.add_flag("--json", command->json, "print a JSON list instead of the table");
  niah.callback([command, &eval] {
    refuse_outer_options(eval, "niah");
    keep_first(command->tasks);
    keep_first(command->lengths);
    run_niah(*command);
  });
}

}  // namespace cortado
