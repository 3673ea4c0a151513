// cortado serve: serves models over HTTP with OpenAI's API.
#include <malloc.h>
#include <sys/stat.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <future>
#include <set>
#include <thread>

#include "cortado/base/files.h"
#include "cortado/base/human.h"
#include "cortado/base/signals.h"
#include "cortado/base/stopwatch.h"
#include "cortado/cli/common.h"
#include "cortado/generate/session.h"
#include "cortado/http/server.h"
#include "cortado/models/adapted.h"
#include "cortado/tokenizers/chat.h"

namespace cortado {
namespace {

constexpr double kLastClients = 10;    // seconds that clients have to read their answers at the end
constexpr double kTidySeconds = 10;    // seconds between two returns of free memory to the system
constexpr double kQuietSeconds = 0.5;  // seconds without work after which free memory is returned at once

struct ServeCommand {
  std::shared_ptr<ModelOptions> model;
  SamplingChoice sampling;
  std::vector<std::string> named;     // --model
  std::vector<std::string> adapters;  // --adapter, of the command's own model
  std::string key_file, page, log = "text";
  double drain_seconds = 30, store_days = 30;
  EngineOptions engine;
  StoreOptions store;
  HttpOptions http;
};

// A model to serve, with its name and options.
struct Named {
  std::string name;
  ModelOptions options;
  SamplingChoice sampling;
  std::vector<std::pair<std::string, std::string>> adapters = {};  // names and folders
  std::shared_ptr<const CLI::App> app = {};                        // owns the options, if they are not the command's
};

void add_adapter_option(CLI::App& app, std::vector<std::string>& adapters) {
  option(app, "--adapter", adapters,
         "NAME=FOLDER: low-rank adapters of the model, served as NAME: a run of `train --lora`, its lora.safetensors, "
         "or a folder of peft; may be given several times",
         kRepeated, kOneWord);
}

// Splits "NAME=VALUE".
std::pair<std::string, std::string> read_pair(const std::string& text, const char* option, const char* form) {
  const size_t equals = text.find('=');
  fail_input_if(equals == std::string::npos || equals == 0 || equals + 1 == text.size(), "[serve] ", option,
                " must be ", form, ", got \"", text, "\"");
  return {text.substr(0, equals), text.substr(equals + 1)};
}

std::vector<std::pair<std::string, std::string>> read_adapters(const std::vector<std::string>& texts) {
  std::vector<std::pair<std::string, std::string>> adapters;
  for (const std::string& text : texts) adapters.push_back(read_pair(text, "--adapter", "NAME=FOLDER"));
  return adapters;
}

// Parses "NAME=RUN", followed by that model's own options: "long=models/smollm2 --memory lola --cache 256".
Named read_named(const std::string& text, const ServeCommand& command) {
  const auto [name, run] = read_pair(text, "--model", "NAME=RUN");
  std::vector<std::string> adapters;
  const auto app = std::make_shared<CLI::App>();
  app->set_help_flag();
  SamplingChoice sampling = command.sampling;
  const auto own = add_model_options(*app);
  add_weights_option(*app, own->weights);
  add_sampling_options(*app, sampling);
  add_cache_option(*app, own->kv_type);
  add_adapter_option(*app, adapters);
  try {
    app->parse(run, false);
  } catch (const CLI::ParseError& error) {
    throw InputError(concat("[serve] --model ", text, ": ", error.what()));
  }
  Sampler{sampling.over({})};
  Named named{name, *own, sampling, read_adapters(adapters), app};
  const auto& common = *command.model;
  // Options that are not given for this model have the command's values.
  named.options.common = std::make_shared<CommonOptions>(*common.common);
  if (own->common->dtype) named.options.common->dtype = own->common->dtype;
  if (!own->weights) named.options.weights = common.weights;
  if (!own->kv_type) named.options.kv_type = common.kv_type;
  if (!own->memory->chosen()) named.options.memory = common.memory;
  return named;
}

std::vector<Named> models_of(const ServeCommand& command) {
  std::vector<Named> models;
  Sampler{command.sampling.over({})};
  if (!command.model->run.empty()) {
    models.push_back({.name = "",
                      .options = *command.model,
                      .sampling = command.sampling,
                      .adapters = read_adapters(command.adapters)});
  }
  fail_input_if(
      command.model->run.empty() && !command.adapters.empty(),
      "[serve] --adapter belongs to a model: cortado serve RUN --adapter ..., or --model \"NAME=RUN --adapter ...\"");
  for (const auto& text : command.named) models.push_back(read_named(text, command));
  fail_input_if(models.empty(), "[serve] there is no model: cortado serve RUN, or --model NAME=RUN");
  std::set<std::string> names;
  for (Named& model : models) {
    model.options.find();
    if (model.name.empty()) model.name = run_name(model.options.run);
    fail_input_if(!names.insert(model.name).second, "[serve] two models have the name ", model.name);
    for (const auto& [name, folder] : model.adapters) {
      fail_input_if(!names.insert(name).second, "[serve] two models have the name ", name);
    }
  }
  return models;
}

ServedModel open(const Named& named) {
  ServedModel served{.name = named.name,
                     .model = named.options.open(),
                     .tokenizer = nullptr,
                     .memory = named.options.memory->flags(),
                     .created = static_cast<int64_t>(std::time(nullptr))};
  fail_input_if(!served.model->config().causal, "[serve] ", named.name,
                " is bidirectional (\"causal\": false): it cannot generate text");
  if (std::filesystem::exists(named.options.run + "/tokenizer")) {
    const auto tokenizer = named.options.tokenizer();
    check_tokenizer(named.name, *tokenizer, served.model->config().vocabulary);
    served.tokenizer = tokenizer;
  }
  const SamplingChoice own = default_sampling(named.options.run, served.tokenizer.get());
  served.sampling = named.sampling.over(own.over({}));
  return served;
}

// Runs in a thread that then ends. A thread that has computed keeps its OpenMP threads; if there are more of these than
// CPUs, the engine's threads sleep between operations, and a token takes twice as long.
std::vector<ServedModel> open_all(const std::vector<Named>& models) {
  std::vector<ServedModel> served;
  for (const Named& named : models) {
    const ServedModel base = open(named);
    served.push_back(base);
    for (const auto& [name, folder] : named.adapters) {
      ServedModel adapted = base;
      adapted.name = name;
      adapted.base = base.name;
      adapted.model = with_adapters(*base.model, folder);
      served.push_back(std::move(adapted));
    }
  }
  return served;
}

// Reads one key per line. Skips empty lines and lines that begin with #.
std::vector<std::string> read_keys(const std::string& path) {
  std::vector<std::string> keys;
  std::istringstream lines(read_file(path));
  for (std::string line; std::getline(lines, line);) {
    const size_t end = line.find_last_not_of(" \t\r");
    if (end == std::string::npos || line[0] == '#') continue;
    keys.push_back(line.substr(0, end + 1));
  }
  fail_input_if(keys.empty(), "[serve] ", path, " has no key");
  return keys;
}

void warn_of_length(const ServedModel& served) {
  const auto context = trained_context(*served.model);
  if (!context || !served.base.empty()) return;
  std::cerr << "warning: " << served.name << " was trained on " << with_commas(*context)
            << " tokens and attends to all that it has read; beyond that length it soon writes nonsense" << std::endl;
}

void warn_of_openness(const HttpOptions& http) {
  const bool home = http.host == "127.0.0.1" || http.host == "::1" || http.host == "localhost";
  if (!home && http.keys.empty()) {
    std::cerr << "warning: anybody who reaches " << http.host << " may use this server: --api-key-file requires a key"
              << std::endl;
  }
}

// Prints the server's addresses and models.
void introduce(const HttpServer& server, const std::vector<ServedModel>& served, bool page) {
  std::string models;
  for (const ServedModel& it : served) {
    const bool taught = it.tokenizer && it.tokenizer->special().chat.taught();
    const std::string problem = taught ? it.chat->problem() : "";
    models +=
        concat(models.empty() ? "" : ", ", it.name, " (", human_count(static_cast<double>(it.model->parameter_count())),
               " parameters", it.memory.empty() || it.memory == "no --memory" ? "" : concat(", ", it.memory),
               !taught           ? "; no chat model: it continues texts"
               : problem.empty() ? ""
                                 : concat("; ", problem),
               ")");
  }
  std::cout << "listening at " << server.address();
  if (page) std::cout << "\n  page    " << server.address() << "/ in a browser";
  std::cout << "\n  API     " << server.address() << "/v1, as OpenAI's\n  models  " << models << std::endl;
}

// Waits until `over`, at most `seconds`. Returns `over`.
bool wait_for(const std::atomic<bool>& over, double seconds) {
  const Stopwatch waited;
  while (!over && waited.seconds() < seconds) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  return over;
}

// Returns free memory to the system, shortly after the last answer or large body and sometimes in between. States,
// answers and bodies of all sizes fragment the heap, which would otherwise grow for hours.
void tidy_until(const std::function<bool()>& over, const Engine& engine, HttpServer& server) {
  bool untidy = false;
  for (Stopwatch tidied, quiet; !over();) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    const Engine::Load load = engine.load();
    if (server.take_large_bodies() || load.waiting + load.reading + load.writing > 0) {
      untidy = true;
      quiet = Stopwatch();
    }
    if (!untidy || (quiet.seconds() < kQuietSeconds && tidied.seconds() < kTidySeconds)) continue;
#ifdef __GLIBC__
    ::malloc_trim(0);
#endif
    untidy = false;
    tidied = Stopwatch();
  }
}

// Serves until Ctrl-C or SIGTERM.
void serve(Engine& engine, HttpServer& server, double drain_seconds) {
  std::atomic<bool> over = false;
  std::thread listening([&] {
    server.listen();
    over = true;
  });
  tidy_until([&] { return interrupt_requested() || over; }, engine, server);
  if (!interrupt_requested()) {
    listening.join();
    throw Failure("[serve] no more connections can be taken");
  }
  std::cerr << "ending: no more requests; waiting for answers, at most " << human_seconds(drain_seconds) << std::endl;
  if (!engine.drain(drain_seconds)) {
    std::cerr << "some answers were cut" << std::endl;
    engine.cut();
    engine.drain(drain_seconds);
  }
  while (!server.running() && !over) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  server.stop();
  // A client that sends or reads a byte from time to time must not delay the end. Everything that must be kept has been
  // written.
  if (!wait_for(over, kLastClients)) {
    std::cerr << "some clients are still connected" << std::endl;
    std::_Exit(0);
  }
  listening.join();
}

// Limits memory that libraries would hold for a long time.
void hold_little() {
#ifdef __GLIBC__
  // One heap for all threads: glibc never returns the ends of the others, up to 64 MiB each.
  ::mallopt(M_ARENA_MAX, 1);
#endif
  // oneDNN and torch cache objects for the last 1,024 shapes of a product, 0.4 MB each, and every length of a prompt
  // has several shapes.
  for (const char* name : {"ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"}) {
    ::setenv(name, "128", /*overwrite=*/0);
  }
}

void run_serve(ServeCommand& command) {
  ::umask(S_IRWXG | S_IRWXO);  // conversations must not be readable by other users
  hold_little();
  const auto models = models_of(command);
  if (!command.key_file.empty()) command.http.keys = read_keys(command.key_file);
  command.http.page = command.page.empty() ? built_in_page() : read_page(command.page);
  command.http.log = command.log == "json" ? LogForm::kJson : command.log == "none" ? LogForm::kNone : LogForm::kText;
  const auto served = std::async(std::launch::async, open_all, models).get();
  for (const ServedModel& it : served) warn_of_length(it);
  catch_interrupts();
  Engine engine(served, command.engine);
  command.store.seconds = command.store_days * 86400;
  Responses responses(engine, command.http.limits, open_store(command.store, engine));
  HttpServer server(engine, responses, command.http);
  warn_of_openness(command.http);
  introduce(server, engine.models(), !command.http.page.empty());
  if (command.http.page.empty()) {
    std::cerr << "warning: this program was built without its page (npm was missing): only the API is served"
              << std::endl;
  }
  serve(engine, server, command.drain_seconds);
}

void add_limits(CLI::App& serve, ServeCommand& command) {
  const HelpGroup group(serve, "Limits");
  serve.option_defaults()->always_capture_default();
  option(serve, "--max-rows", command.engine.rows, "answers that are processed at a time", CLI::Range(1, 64));
  option(serve, "--max-waiting", command.engine.waiting,
         "requests that may wait; further ones are refused with status 429", CLI::Range(0, 100000));
  option(
      serve, "--piece", command.engine.piece,
      "tokens of a prompt that are read at a time, a multiple of 64; large pieces are read faster, but prompts share "
      "a common prefix only up to a multiple of this",
      CLI::Range(1, 1 << 20));
  option(serve, "--prefill-tokens", command.engine.prefill_tokens,
         "tokens of prompts (or equivalent layers of a longer piece) that are read between two tokens of the answers",
         CLI::Range(1, 1 << 20));
  serve.add_option("--max-prompt", command.http.limits.prompt_tokens, "largest number of tokens of a prompt")
      ->check(CLI::PositiveNumber);
  option(serve, "--max-answer", command.http.limits.answer_tokens,
         "largest number of tokens of an answer; also the default of a chat answer", CLI::PositiveNumber);
  option(serve, "--max-seconds", command.http.limits.seconds, "time limit of an answer; 0: none",
         CLI::NonNegativeNumber);
  serve.add_option("--max-body", command.http.body_bytes, "largest size of a request, in bytes")
      ->check(CLI::PositiveNumber)
      ->transform(CLI::AsSizeValue(false));
  serve.add_option("--max-connections", command.http.connections, "largest number of connections at a time")
      ->check(CLI::Range(1, 10000));
  option(serve, "--drain-seconds", command.drain_seconds, "time that answers have to finish when the server is stopped",
         CLI::NonNegativeNumber);
}

}  // namespace

void add_serve_command(CLI::App& app) {
  auto command = std::make_shared<ServeCommand>();
  auto& serve = *app.add_subcommand("serve", "Serve models over HTTP with OpenAI's API");
  serve.footer(
      "A conversation that continues is not read again: states are cached, by the tokens that led to them, in\n"
      "--cache-bytes of memory. After Ctrl-C or SIGTERM the server refuses new requests, finishes its answers, and\n"
      "ends.\n\n"
      "Examples:\n"
      "  cortado serve models/smollm2\n"
      "  cortado serve SmolLM2-135M-Instruct.Q4_1.gguf --temperature 0.2 --top-p 0.9\n"
      "  cortado serve runs/memory --weights int8 --kv-type float16 --port 9000     made by linearize: constant "
      "memory\n"
      "  cortado serve --model \"exact=models/smollm2\" --model \"long=runs/memory --weights int8\"\n"
      "  curl http://127.0.0.1:8080/v1/completions -d '{\"prompt\": \"ROMEO:\", \"max_tokens\": 50}'");
  command->model = add_model_options(serve);
  auto* run = serve.get_option("run");
  run->required(false)->description(concat(kModelHelp, "; its name becomes the model's"));
  add_weights_option(serve, command->model->weights);
  add_sampling_options(serve, command->sampling);
  add_cache_option(serve, command->model->kv_type);
  option(
      serve, "--model", command->named,
      "NAME=RUN: another model, with its own --memory, --weights, --kv-type, --dtype, --temperature after the folder; "
      "may be given several times",
      kRepeated, kOneWord);
  add_adapter_option(serve, command->adapters);
  serve.add_option("--host", command->http.host, "the address to listen at")->capture_default_str();
  option(serve, "--port", command->http.port, "the port to listen at; 0: any free one", kShown, CLI::Range(0, 65535));
  serve.add_option("--cors", command->http.cors,
                   "an origin whose pages may call the server (https://example.org), or * for all");
  serve.add_flag(
      "--strict", command->http.limits.strict,
      "refuse unknown fields and values out of range even if they have no effect (max_tokens above --max-answer, "
      "empty stops, other servers' fields at their neutral values)");
  serve.add_option("--api-key-file", command->key_file,
                   "a file with one key per line; requests need one of them, as Authorization: Bearer KEY");
  serve.add_option("--cache-bytes", command->engine.cache_bytes, "memory for cached states (1G, 200M)")
      ->capture_default_str()
      ->transform(CLI::AsSizeValue(false));
  serve.add_option(
      "--store", command->store.place,
      "where to keep conversations of /v1/responses: a folder, or redis://HOST:PORT, which several servers "
      "may share (default: in memory)");
  serve.add_option("--store-days", command->store_days, "lifetime of stored conversations, in days")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  serve
      .add_option("--store-bytes", command->store.bytes,
                  "largest size of a --store folder; the oldest conversations are removed")
      ->capture_default_str()
      ->transform(CLI::AsSizeValue(false));
  serve.add_option("--page", command->page, "a folder whose files are served at / instead of the built-in page");
  option(serve, "--log", command->log, "one line per request: text, json or none; never contains the request's content",
         CLI::IsMember({"text", "json", "none"}), kShown);
  add_limits(serve, *command);
  serve.callback([command] { run_serve(*command); });
}

}  // namespace cortado
