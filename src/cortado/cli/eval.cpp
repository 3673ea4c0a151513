// cortado eval: the loss of a trained model on a text, by context length.
#include <c10/core/InferenceMode.h>

#include <filesystem>

#include "cortado/base/files.h"
#include "cortado/base/hash.h"
#include "cortado/base/human.h"
#include "cortado/base/progress.h"
#include "cortado/base/signals.h"
#include "cortado/base/stopwatch.h"
#include "cortado/base/table.h"
#include "cortado/base/utf8.h"
#include "cortado/cli/common.h"
#include "cortado/cli/imported.h"
#include "cortado/data/text_stream.h"
#include "cortado/evaluate/evaluate.h"

namespace cortado {
namespace {

struct EvalCommand {
  std::vector<std::string> files;
  std::string separator;
  std::vector<int64_t> contexts;
  int64_t stride = 0, limit = 0;
  bool json = false;
  std::shared_ptr<ModelOptions> model;
};

struct Text {
  std::shared_ptr<TokenFile> tokens;
  double bytes_per_token = 0;      // average over the predicted tokens
  double bytes_per_character = 1;  // average over the whole text; 1 if any byte is a token
  std::string hash;                // of all files
};

// Splits a file into documents. Without a separator it is one document.
std::vector<std::string_view> split(std::string_view text, const std::string& separator) {
  std::vector<std::string_view> parts;
  while (!separator.empty()) {
    const size_t end = text.find(separator);
    if (end == std::string_view::npos) break;
    if (end > 0) parts.push_back(text.substr(0, end));
    text.remove_prefix(end + separator.size());
  }
  if (!text.empty()) parts.push_back(text);
  return parts;
}

std::string read_text(const std::string& path, const Tokenizer& tokenizer) {
  std::string text = read_file(path);
  fail_input_if(text.empty(), "[", path, "] is empty");
  if (tokenizer.kind() == "byte") return text;
  const size_t valid = utf8_valid_prefix(text);
  fail_input_if(valid != text.size(), "[", path, "] is not UTF-8 text: byte ", valid);
  return text;
}

Text tokenize(const EvalCommand& command, const Tokenizer& tokenizer) {
  std::vector<at::Tensor> parts;
  std::vector<int64_t> documents;
  int64_t tokens = 0, bytes = 0, all_bytes = 0, characters = 0;
  std::string hashes;
  for (const auto& path : command.files) {
    const std::string text = read_text(path, tokenizer);
    hashes += hash_text(text);
    for (const auto document : split(text, command.separator)) {
      const auto ids = tokenizer.encode(document);
      if (ids.empty()) continue;
      documents.push_back(tokens);
      all_bytes += static_cast<int64_t>(document.size());
      if (tokenizer.kind() != "byte") characters += count_characters(document);
      tokens += static_cast<int64_t>(ids.size());
      // A document's first token is not predicted, so its bytes don't count.
      bytes += static_cast<int64_t>(document.size()) - static_cast<int64_t>(tokenizer.decode({ids[0]}).size());
      parts.push_back(at::tensor(ids, at::kLong));
    }
  }
  const auto predicted = tokens - static_cast<int64_t>(documents.size());
  fail_input_if(predicted < 1, "[eval] the text is too short: no document has two tokens");
  return {tokens_in_memory(at::cat(parts), documents), static_cast<double>(bytes) / static_cast<double>(predicted),
          tokenizer.kind() == "byte" ? 1.0 : static_cast<double>(all_bytes) / static_cast<double>(characters), hashes};
}

Json evaluate(LanguageModel& model, const Text& text, const EvaluateOptions& base, const EvalCommand& command) {
  const int64_t context = base.context;
  ProgressBar bar({.label = concat("context ", with_commas(context)), .unit = "tokens", .quiet = !base.ranks.first()});
  EvaluateOptions options = base;
  options.stride = command.stride > 0 ? command.stride : std::max<int64_t>(1, context / 2);
  options.limit = command.limit;
  options.tokens_per_call = std::max(options.tokens_per_call, context);
  const Stopwatch watch;
  options.progress = [&](int64_t done, int64_t total) {
    exit_if_interrupted();
    bar.update_of(done, total);
  };
  const Evaluation result = evaluate_loss(model, *text.tokens, options);
  const double bits = result.loss() / std::log(2.0) / text.bytes_per_token;
  return {{"context", context},
          {"tokens", result.tokens},
          {"loss", result.loss()},
          {"perplexity", result.perplexity()},
          {"bits_per_byte", bits},
          {"bits_per_character", bits * text.bytes_per_character},
          {"accuracy", result.accuracy()},
          {"tokens_per_second", static_cast<double>(result.tokens) / watch.seconds()}};
}

// Checks all contexts before any work is done.
void check_contexts(const LanguageModel& model, EvalCommand& command, size_t marks) {
  const auto& config = model.config();
  if (command.contexts.empty()) command.contexts = {config.context > 0 ? config.context : 256};
  for (const int64_t context : command.contexts) {
    const auto longest = context + static_cast<int64_t>(marks);
    fail_input_if(config.positions == PositionKind::kLearned && longest > config.context, "[--context] ", longest,
                  " is beyond the model's learned positions: it has ", config.context);
    fail_input_if(command.stride > context, "[--stride] must be at most the context, ", context, ", got ",
                  command.stride);
  }
}

void run_eval(EvalCommand& command) {
  const c10::InferenceMode inference;
  const Ranks& ranks = Ranks::world();
  std::shared_ptr<LanguageModel> model;
  std::vector<int32_t> begin;
  Text text;
  ranks.agree([&] {
    command.model->find();
    model = command.model->open();
    const auto tokenizer = command.model->tokenizer();
    begin = command.model->begin(*tokenizer);
    check_contexts(*model, command, begin.size());
    text = tokenize(command, *tokenizer);
  });
  ranks.require_same("model", model->identity());
  ranks.require_same("text", text.hash);
  catch_interrupts();
  Json results = Json::array();
  for (const int64_t context : command.contexts) {
    results.push_back(evaluate(*model, text, {.context = context, .begin = begin, .ranks = ranks}, command));
  }
  if (!ranks.first()) return;
  const Table table = table_of(results, {{"context", "/context", with_commas},
                                         {"tokens", "/tokens", with_commas},
                                         {"loss", "/loss", decimals(4)},
                                         {"perplexity", "/perplexity", decimals(3)},
                                         {"bits/byte", "/bits_per_byte", decimals(4)},
                                         {"right, %", "/accuracy", decimals(2, 0.01)},
                                         {"tokens/s", "/tokens_per_second", human_count}});
  std::cout << (command.json ? results.dump() + "\n" : table.text()) << std::flush;
}

// CLI11 reads the RUN of `eval --text FILE RUN` as another text.
void take_run_from_texts(EvalCommand& command) {
  if (!command.model->run.empty() || command.files.empty()) return;
  const std::string& last = command.files.back();
  if (!std::filesystem::is_directory(last) && !is_pretrained(last)) return;
  command.model->run = command.files.back();
  command.files.pop_back();
}

}  // namespace

void add_eval_command(CLI::App& app) {
  auto command = std::make_shared<EvalCommand>();
  auto& eval =
      *app.add_subcommand("eval", "Measure how well a model predicts texts, and what it retrieves from long ones");
  eval.footer(
      "Each document is covered by windows of --context tokens: the first begins at the document's beginning, each\n"
      "next one --stride tokens later, and the last ends at the document's end. Every token except a document's\n"
      "first is predicted once, by the first window that contains it. So it is predicted from at least context -\n"
      "stride tokens, if the document has them. Before every window the model reads its begin token (BOS), if it\n"
      "has one, as in `cortado generate`; --no-bos leaves it out. Each file is one document, or each of its parts\n"
      "between --separator. Loss is in nats per token.\n\n"
      "Examples:\n"
      "  cortado eval runs/first --text validation.txt --context 256,1024,4096\n"
      "  cortado eval runs/first --text book.txt letters.txt\n"
      "  cortado eval ruler --help   what a model retrieves from long texts: needles, variables, words, documents\n"
      "  cortado eval ppl --help     perplexity by context length, with a picture\n"
      "  cortado eval task --help    metrics of a model on the task that it was trained on");
  command->model = add_model_options(eval);
  // Required for this form only: with required(), CLI11 would also require it for the subcommands.
  eval.get_option("run")->required(false);
  add_weights_option(eval, command->model->weights);
  add_cache_option(eval, command->model->kv_type);
  add_bos_option(eval, command->model->bos);
  eval.add_option("--text", command->files, "text files; may be given several times")->take_all();
  eval.add_option("--separator", command->separator, "a text that separates documents inside a file");
  option(eval, "--context", command->contexts, "window lengths, separated by commas (default: the training length)",
         kCommas, CLI::Range(1, 1 << 30));
  option(eval, "--stride", command->stride, "tokens by which the window slides (default: half the context)",
         CLI::PositiveNumber);
  eval.add_option("--limit", command->limit, "stop after about this many tokens")->check(CLI::PositiveNumber);
  eval.add_flag("--json", command->json, "print a JSON list instead of a table");
  eval.require_subcommand(0, 1);
  add_eval_ruler_commands(eval);
  add_eval_perplexity_command(eval);
  add_eval_task_command(eval);
  eval.callback([command, &eval] {
    if (!eval.get_subcommands().empty()) return;
    take_run_from_texts(*command);
    if (command->model->run.empty()) throw CLI::RequiredError("run");
    if (command->files.empty()) throw CLI::RequiredError("--text");
    run_eval(*command);
  });
}

}  // namespace cortado
