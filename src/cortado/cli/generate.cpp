// cortado generate: continues a text with a trained model.
#include "cortado/generate/generate.h"

#include <c10/core/InferenceMode.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iterator>

#include "cortado/base/files.h"
#include "cortado/base/human.h"
#include "cortado/base/signals.h"
#include "cortado/base/stopwatch.h"
#include "cortado/base/utf8.h"
#include "cortado/cli/common.h"
#include "cortado/models/config.h"
#include "cortado/nn/dtype.h"
#include "cortado/parallel/ranks.h"

namespace cortado {
namespace {

constexpr int64_t kChatTokens = 1000;  // default length of a chat answer

struct GenerateCommand {
  std::optional<std::string> prompt;
  std::string prompt_file, save_state, load_state, system;
  std::vector<int32_t> prompt_tokens;
  bool chat = false, echo = false, json = false;
  GenerateOptions options;
  SamplingChoice sampling;
  CLI::Option* length = nullptr;  // --n-tokens
  std::shared_ptr<ModelOptions> model;
};

// Counts and times for the summary.
struct Report {
  int64_t prompt_tokens = 0;
  double prompt_seconds = 0, decode_seconds = 0;
  Generated generated;
  std::string text;             // collected for --json only
  std::vector<int32_t> tokens;  // also collected for --json only
  bool cut = false;             // stopped while reading the prompt
  bool line_open = false;       // the printed text does not end with a newline
  int64_t refused = 0;          // lines of a conversation that were not UTF-8
};

// Warns once when a model with softmax attention exceeds its training length.
class ContextWarning {
 public:
  explicit ContextWarning(const Session& session) : session_(session), longest_(trained_context(session.model())) {}

  // Call this before reading `tokens` more tokens.
  void look(int64_t tokens) {
    if (!longest_ || session_.depth() + tokens <= *longest_) return;
    if (Ranks::world().first())
      std::cerr << "warning: this model was trained on " << with_commas(*longest_)
                << " tokens and attends to all that it has read; beyond that length it soon writes nonsense"
                << std::endl;
    longest_.reset();
  }

 private:
  const Session& session_;
  std::optional<int64_t> longest_;  // none: no warning needed, or already given
};

std::string read_stdin() {
  if (isatty(STDIN_FILENO)) std::cerr << "the prompt, then Ctrl-D:" << std::endl;
  return {std::istreambuf_iterator<char>(std::cin), {}};
}

// Returns --prompt, --prompt-file (- is standard input), or standard input, which is not read if a state is loaded.
std::string read_prompt(const GenerateCommand& command) {
  if (command.prompt) return *command.prompt;
  if (command.prompt_file == "-") return read_stdin();
  if (!command.prompt_file.empty()) return read_file(command.prompt_file);
  return command.load_state.empty() ? read_stdin() : "";
}

double rate(int64_t tokens, double seconds) { return seconds > 0 ? static_cast<double>(tokens) / seconds : 0; }

// Returns the run's tokenizer; null if it has none and the command only uses token numbers.
std::shared_ptr<Tokenizer> tokenizer_of(const GenerateCommand& command) {
  const std::string& run = command.model->run;
  if (std::filesystem::exists(run + "/tokenizer")) return command.model->tokenizer();
  const bool texts =
      command.prompt || !command.prompt_file.empty() || command.chat || !command.options.text.stops.empty();
  fail_input_if(texts || (command.prompt_tokens.empty() && command.load_state.empty()), "[generate] ", run,
                " has no tokenizer: it reads and writes token numbers, as --prompt-tokens 1,2,3");
  return nullptr;
}

at::ScalarType cache_type(const Session& session) {
  return session.model().cache_type().value_or(session.model().dtype());
}

int64_t kv_cache_bytes(const Session& session) {
  return key_value_bytes(session.model().config(), session.depth(), cache_type(session));
}

void print_summary(const Session& session, const Report& report) {
  if (report.prompt_tokens > 0) {
    std::cerr << "prompt   " << with_commas(report.prompt_tokens) << " tokens, "
              << human_count(rate(report.prompt_tokens, report.prompt_seconds)) << " tokens/s\n";
  }
  if (report.generated.tokens > 0) {
    std::cerr << "decode   " << with_commas(report.generated.tokens) << " tokens, "
              << human_count(rate(report.generated.tokens, report.decode_seconds)) << " tokens/s\n";
  }
  std::cerr << "state    " << human_bytes(static_cast<double>(session.state_bytes())) << " after "
            << with_commas(session.depth())
            << " tokens; keys and values of every token: " << human_bytes(static_cast<double>(kv_cache_bytes(session)))
            << " as " << dtype_name(cache_type(session)) << std::endl;
}

void print_json(const Session& session, const Report& report) {
  constexpr const char* kEnds[] = {"tokens", "stop", "cancelled"};
  const Json json = {{"text", report.text},
                     {"token_ids", report.tokens},
                     {"end", kEnds[static_cast<int>(report.generated.end)]},
                     {"prompt_tokens", report.prompt_tokens},
                     {"prompt_tokens_per_second", rate(report.prompt_tokens, report.prompt_seconds)},
                     {"tokens", report.generated.tokens},
                     {"tokens_per_second", rate(report.generated.tokens, report.decode_seconds)},
                     {"depth", session.depth()},
                     {"state_bytes", session.state_bytes()},
                     {"kv_cache_bytes", kv_cache_bytes(session)},
                     {"kv_cache_dtype", dtype_name(cache_type(session))}};
  // A byte-level model may generate text that is not UTF-8.
  std::cout << json.dump(-1, ' ', false, Json::error_handler_t::replace) << std::endl;
}

void load_state(Session& session, const GenerateCommand& command) {
  if (!command.load_state.empty()) session.load(command.load_state, command.model->memory->flags());
}

// Returns the tokens to read first: --prompt-tokens, or those of the text.
std::vector<int32_t> prompt_tokens(const Session& session, const GenerateCommand& command, Report& report) {
  if (!command.prompt_tokens.empty() || !session.tokenizer()) return command.prompt_tokens;
  const std::string prompt = read_prompt(command);
  if (command.echo && command.json) report.text += prompt;
  if (command.echo && !command.json) std::cout << prompt << std::flush;
  const auto& tokenizer = *session.tokenizer();
  const bool begins = session.depth() == 0 && command.model->bos;
  return begins ? encode_prompt(tokenizer, prompt) : tokenizer.encode(prompt);
}

// With several processes, process 0 has the prompt and all read it together.
void read(Session& session, const GenerateCommand& command, ContextWarning& warning, Report& report) {
  const Ranks& ranks = Ranks::world();
  std::vector<int32_t> tokens;
  ranks.by_first([&] {
    load_state(session, command);
    tokens = prompt_tokens(session, command, report);
    fail_input_if(tokens.empty() && session.depth() == 0,
                  "[generate] the prompt is empty: the model needs a text to continue");
  });
  if (ranks.several()) tokens = parse_json(ranks.gather(Json(tokens).dump())[0], "prompt").get<std::vector<int32_t>>();
  warning.look(static_cast<int64_t>(tokens.size()));
  const Stopwatch watch;
  report.prompt_tokens = session.prefill_among(ranks, tokens, Session::kChunk, command.options.cancelled);
  report.cut = report.prompt_tokens < static_cast<int64_t>(tokens.size());
  report.prompt_seconds = watch.seconds();
}

void write(Session& session, GenerateCommand& command, ContextWarning& warning, Report& report) {
  const bool numbers = !session.tokenizer();  // token numbers are written in the form of --prompt-tokens
  if (!numbers) command.options.text.stop_tokens = session.tokenizer()->special().stops;
  command.options.on_token = [&](int32_t token) {
    warning.look(1);
    if (command.json) report.tokens.push_back(token);
    if (command.json || !numbers) return;
    std::cout << (report.line_open ? "," : "") << token << std::flush;
    report.line_open = true;
  };
  const Stopwatch watch;
  report.generated = generate(session, command.options, [&](std::string_view text) {
    if (command.json) {
      report.text += text;
    } else {
      std::cout << text << std::flush;
      report.line_open = text.back() != '\n';
    }
  });
  report.decode_seconds = watch.seconds();
  // Only on a terminal: in files and pipes, texts that continue from a state must join seamlessly.
  if (report.line_open && isatty(STDOUT_FILENO)) std::cout << std::endl;
  if (!std::cout) throw Failure("[generate] the standard output can't be written to");
}

// Reads lines from standard input. std::getline is not used because a signal does not interrupt it.
class Lines {
 public:
  // Returns false at the end of the input and after Ctrl-C.
  bool next(std::string& line) {
    if (isatty(STDIN_FILENO)) std::cerr << "> " << std::flush;
    while (true) {
      if (const size_t end = buffer_.find('\n'); end != std::string::npos) {
        line = buffer_.substr(0, end);
        buffer_.erase(0, end + 1);
        return true;
      }
      if (ended_) {
        line = std::exchange(buffer_, {});
        return !line.empty();
      }
      if (!fill()) return false;
    }
  }

 private:
  bool fill() {
    pollfd input{STDIN_FILENO, POLLIN, 0};
    if (interrupt_requested()) return false;
    if (::poll(&input, 1, -1) < 0 && errno == EINTR) return !interrupt_requested();
    char bytes[4096];
    const ssize_t count = ::read(STDIN_FILENO, bytes, sizeof bytes);
    if (count < 0 && errno != EINTR) {
      throw Failure(concat("[chat] the standard input cannot be read: ", std::strerror(errno)));
    }
    if (count > 0) buffer_.append(bytes, static_cast<size_t>(count));
    ended_ = count == 0;
    return true;
  }

  std::string buffer_;
  bool ended_ = false;
};

// Asks one question and prints its answer.
void exchange_words(Conversation& conversation, const std::string& question, const GenerateOptions& options,
                    Report& report) {
  const Stopwatch reading;
  const int64_t read = conversation.ask(question, options.cancelled);
  report.prompt_tokens += read;
  report.prompt_seconds += reading.seconds();
  if (read == 0) {
    std::cerr << "the question was not asked" << std::endl;
    return;
  }
  const Stopwatch writing;
  const auto generated = conversation.answer(options, [](std::string_view text) { std::cout << text << std::flush; });
  report.generated.tokens += generated.tokens;
  report.decode_seconds += writing.seconds();
  std::cout << std::endl;
  if (!std::cout) throw Failure("[chat] the standard output can't be written to");
}

// Runs a conversation, or asks one question if there is a prompt. Answers go to standard output. Ctrl-C ends an answer;
// while waiting for a line, it ends the conversation.
void talk(Session& session, GenerateCommand& command, ContextWarning& warning, Report& report) {
  load_state(session, command);
  GenerateOptions options = command.options;
  options.on_token = [&](int32_t) { warning.look(1); };
  if (command.length->count() == 0) options.tokens = kChatTokens;
  std::optional<std::string> question;
  if (command.prompt || !command.prompt_file.empty()) question = read_prompt(command);
  Conversation conversation(session, command.system);
  if (question) return exchange_words(conversation, *question, options, report);
  Lines lines;
  std::string line;
  while (lines.next(line)) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    if (const size_t valid = utf8_valid_prefix(line); valid != line.size()) {
      std::cerr << "[chat] the question is not UTF-8 text: byte " << valid << "; it was left out" << std::endl;
      ++report.refused;
      continue;
    }
    exchange_words(conversation, line, options, report);
    clear_interrupt();  // it only ended the answer
  }
  if (isatty(STDIN_FILENO)) std::cerr << std::endl;
}

void run_generate(GenerateCommand& command) {
  const c10::InferenceMode inference;
  const Ranks& ranks = Ranks::world();
  if (command.chat) ranks.require_one("generate --chat");
  std::optional<Session> opened;
  ranks.agree([&] {
    // Everything that can be refused is refused before the model is read.
    Sampler{command.sampling.over(command.options.sampling)};
    StopFilter{command.options.text.stops};
    if (!command.save_state.empty() && ranks.first()) check_output_file(command.save_state);
    command.model->find();
    const auto model = command.model->open();
    const auto tokenizer = tokenizer_of(command);
    const SamplingChoice own = default_sampling(command.model->run, tokenizer.get());
    command.options.sampling = command.sampling.over(own.over(command.options.sampling));
    opened.emplace(model, tokenizer);
  });
  Session& session = *opened;
  ranks.require_same("model", session.model().identity());
  ContextWarning warning(session);
  catch_interrupts();
  command.options.sampling.seed = command.model->common->seed_or(0);
  command.options.cancelled = interrupt_requested;
  Report report;
  if (command.chat) {
    talk(session, command, warning, report);
  } else {
    read(session, command, warning, report);
    if (!ranks.first()) return;  // only one process generates
    write(session, command, warning, report);
  }
  if (report.cut) {
    std::cerr << "stopped before the prompt was read" << (command.save_state.empty() ? "" : ": no state is saved")
              << std::endl;
  } else if (!command.save_state.empty() && session.depth() > 0) {
    session.save(command.save_state, command.model->memory->flags());
  }
  if (command.json) {
    print_json(session, report);
  } else {
    print_summary(session, report);
  }
  exit_if_interrupted();
  fail_input_if(report.refused > 0, "[chat] lines that are not UTF-8 text: ", report.refused);
}

}  // namespace

void add_generate_command(CLI::App& app) {
  auto command = std::make_shared<GenerateCommand>();
  auto& generate = *app.add_subcommand("generate", "Continue a text, token by token, at constant memory");
  generate.footer(
      "The text goes to standard output, speed and state size to standard error. The same --seed gives the same text.\n"
      "A text begins with the model's begin token (BOS), if it has one, as in `cortado eval`; --no-bos leaves it out.\n"
      "--save-state saves everything that was read and written, including a --stop text. --load-state continues from\n"
      "there at once and needs no prompt. A run without a tokenizer reads --prompt-tokens and writes token numbers.\n\n"
      "Examples:\n"
      "  cortado generate runs/first --prompt \"ROMEO:\" --temperature 0.8\n"
      "  cortado generate runs/first --prompt-file play.txt --n-tokens 0 --save-state play.state\n"
      "  cortado generate runs/first --load-state play.state --n-tokens 500\n"
      "  cortado generate models/smollm2 --chat");
  command->model = add_model_options(generate);
  add_weights_option(generate, command->model->weights);
  add_cache_option(generate, command->model->kv_type);
  auto* prompt = generate.add_option("--prompt", command->prompt, "the text to continue (default: standard input)");
  auto* file = generate.add_option("--prompt-file", command->prompt_file, "a file with that text; - is standard input");
  auto* numbers = generate.add_option("--prompt-tokens", command->prompt_tokens, "the prompt as token numbers: 1,2,3");
  numbers->delimiter(',')->allow_extra_args(false)->check(CLI::Range(0, std::numeric_limits<int32_t>::max()));
  prompt->excludes(file)->excludes(numbers);
  file->excludes(numbers);
  add_bos_option(generate, command->model->bos);
  command->length = option(generate, "--n-tokens", command->options.tokens, "largest number of tokens to write",
                           CLI::NonNegativeNumber, kShown);
  generate.add_option("--save-state", command->save_state, "write the sequence's state to this file at the end");
  generate.add_option("--load-state", command->load_state, "continue from a saved state");
  auto* echo = generate.add_flag("--echo", command->echo, "print the prompt too");
  auto* json =
      generate.add_flag("--json", command->json, "print one JSON object at the end instead of the text as it comes");
  auto* chat = generate.add_flag("--chat", command->chat,
                                 "chat with the model: each line is a question, Ctrl-C ends an answer, Ctrl-D the "
                                 "conversation; with a prompt, asks only that");
  chat->excludes(echo)->excludes(json)->excludes(numbers);
  echo->excludes(numbers);
  generate.add_option("--system", command->system, "the system message of --chat, instead of the model's default")
      ->needs(chat);
  add_sampling_options(generate, command->sampling);
  {
    const HelpGroup group(generate, kSamplingGroup);
    option(generate, "--repetition-window", command->options.sampling.repetition_window,
           "how many tokens count as recent",
           CLI::Range(static_cast<int64_t>(0), static_cast<int64_t>(Session::kRecentTokens)), kShown);
  }
  option(generate, "--stop", command->options.text.stops,
         "end at this text, without printing it; may be given several times", kRepeated, kOneWord);
  generate.callback([command] { run_generate(*command); });
}

}  // namespace cortado
