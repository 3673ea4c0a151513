// The program's commands. Exit codes: 0 success, 1 the work failed, 2 bad usage or input, 130 or 143 stopped by Ctrl-C
// or SIGTERM.
#include <c10/util/Exception.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iostream>

#include "cortado/base/json.h"
#include "cortado/cli/common.h"
#include "cortado/parallel/ranks.h"

namespace cortado {
namespace {

constexpr int kFailed = 1;
constexpr int kBadInput = 2;

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

int complain(const std::string& message, int code) {
  std::cout.flush();
  std::cerr << "cortado: " << first_line(message) << std::endl;
  return code;
}

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(command->get_name());
  }
  return names;
}

std::string did_you_mean(const std::string& word, const std::vector<std::string>& known) {
  const std::string nearest = nearest_word(word, known);
  return nearest.empty() ? "" : concat("; did you mean \"", nearest, "\"?");
}

// Checks that the first word is a command, because CLI11 would only report that it did not expect it.
void check_command(const CLI::App& app, const std::string& word) {
  const auto names = command_names(app);
  if (word.rfind('-', 0) == 0 || std::find(names.begin(), names.end(), word) != names.end()) return;
  std::string suggestion = did_you_mean(word, names);
  if (suggestion.empty()) suggestion = "; `cortado --help` lists them";
  throw InputError(concat("unknown command \"", word, "\"", suggestion));
}

// Explains a misspelt option by the nearest option that the command has.
std::string explain(const CLI::App& app, const CLI::ExtrasError& error) {
  const CLI::App* command = &app;
  while (!command->get_subcommands().empty()) command = command->get_subcommands().front();
  const auto words = command->remaining(true);
  if (words.empty()) return error.what();
  const std::string word = words.front().substr(0, words.front().find('='));
  std::vector<std::string> known;
  for (const CLI::Option* option : command->get_options()) {
    for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
  }
  const std::string kind = word.rfind('-', 0) == 0 ? "unknown option" : "unexpected argument";
  return concat(kind, " \"", word, "\"", did_you_mean(word, known));
}

// In the order of the help.
constexpr AddCommand* kCommands[] = {
    add_prepare_command,   add_train_command,      add_eval_command,   add_generate_command,
    add_compare_command,   add_describe_command,   add_import_command, add_export_command,
    add_linearize_command, add_mechanisms_command, add_doctor_command, add_sweep_command,
    add_task_command,      add_analyze_command,    add_serve_command,  add_bench_command};

// For the test of the commands in documents (CORTADO_PARSE_ONLY): parses options strictly, but runs no command.
bool parses_only() { return std::getenv("CORTADO_PARSE_ONLY") != nullptr; }

int run(int argc, char** argv) {
  CLI::App app("cortado: linear-time attention, from training to generation at constant memory.", "cortado");
  app.set_help_flag("-h,--help", "print this help");
  app.set_version_flag("--version", version_line(), "print the version");
  app.require_subcommand(0, 1);
  app.footer(
      "Examples:\n"
      "  cortado train configs/nanogpt-cpu.json --out runs/first\n"
      "  cortado generate runs/first --prompt \"ROMEO:\"\n"
      "`cortado COMMAND --help` prints the options of a command, and examples.");
  for (AddCommand* add : kCommands) add(app);
  if (parses_only()) app.parse_complete_callback([] { throw CLI::RuntimeError(0); });
  if (argc < 2) {
    std::cout << app.help();
    return 0;
  }
  try {
    check_command(app, argv[1]);
    app.parse(argc, argv);
  } catch (const CLI::ExtrasError& error) {
    return complain(explain(app, error), kBadInput);
  } catch (const CLI::RuntimeError& error) {
    // The command has printed a message and chosen its exit code (130).
    return error.get_exit_code();
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    return complain(error.what(), kBadInput);
  } catch (const InputError& error) {
    return complain(error.what(), kBadInput);
  } catch (const EndedElsewhere& error) {
    return error.code;
  } catch (const c10::Error& error) {
    return complain(error.what_without_backtrace(), kFailed);
  } catch (const std::exception& error) {
    return complain(error.what(), kFailed);
  }
  return 0;
}

// Flushes the output, because a full disk may only show now.
int check_output(int code) {
  std::cout.flush();
  if (code != 0 || (std::cout && std::fflush(stdout) == 0 && !std::ferror(stdout))) return code;
  return complain("[stdout] the output could not be written: is the disk full?", kFailed);
}

}  // namespace
}  // namespace cortado

// Called by program.cpp.
extern "C" __attribute__((visibility("default"))) int cortado_main(int argc, char** argv) {
  // Exceeding a limit on file sizes becomes an error of write(), reported in one line like a full disk.
  std::signal(SIGXFSZ, SIG_IGN);
  return cortado::check_output(cortado::run(argc, argv));
}
