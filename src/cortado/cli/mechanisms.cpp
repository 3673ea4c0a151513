// cortado mechanisms: the list of mechanisms with paper, equation, state and kernels.
#include <unistd.h>

#include <limits>

#include "cortado/base/table.h"
#include "cortado/cli/common.h"
#include "cortado/mechanisms/registry.h"

namespace cortado {
namespace {

std::string forms(const Mechanism& mechanism) {
  if (!mechanism.causal) return "bidirectional";
  return mechanism.bidirectional ? "causal, bidirectional" : "causal";
}

Json as_json(const Mechanism& mechanism) {
  Json forms = {"reference", "chunked"};
  if (mechanism.causal) forms.push_back("step");
  Json primitives = Json::object();  // name -> what computes it
  for (const std::string& name : mechanism.primitives) {
    const Primitive* primitive = find_primitive(name);
    primitives[name] = primitive && !primitive->kernel.empty() ? std::string(primitive->kernel) : "ATen";
  }
  return {{"name", mechanism.name},     {"family", mechanism.family},
          {"paper", mechanism.paper},   {"equation", mechanism.equation},
          {"state", mechanism.state},   {"forms", forms},
          {"causal", mechanism.causal}, {"bidirectional", mechanism.bidirectional},
          {"primitives", primitives},   {"kernel", kernels_of(mechanism)}};
}

void print_json() {
  Json all = Json::array();
  for (const Mechanism* mechanism : mechanisms()) all.push_back(as_json(*mechanism));
  std::cout << all.dump(2) << std::endl;
}

// The rows of README.md's table.
void print_markdown() {
  Table table({"mixer", "forms", "state per layer (numbers)", "source"});
  for (const Mechanism* m : mechanisms()) table.add_row({concat("`", m->name, "`"), forms(*m), m->state, m->paper});
  std::cout << table.markdown();
}

Table wide_table() {
  Table table({"mixer", "family", "forms", "kernel", "primitives", "state per layer (numbers)", "paper"});
  for (const Mechanism* m : mechanisms()) {
    table.add_row({m->name, m->family, forms(*m), kernels_of(*m),
                   m->primitives.empty() ? "none" : joined(m->primitives, ", "), m->state, m->paper});
  }
  return table;
}

Table narrow_table() {
  Table table({"mixer", "forms", "state per layer (numbers)", "paper"});
  for (const Mechanism* m : mechanisms()) table.add_row({m->name, forms(*m), m->state, m->paper});
  return table;
}

// The letters of Mechanism::state; README.md's table has the same legend.
constexpr const char* kLegend =
    "State sizes count the numbers of one layer for one sequence. T: tokens so far. D: width of the model. H: heads. "
    "Hkv: key heads. d: width of a head. K, V: width of a key and of a value. F: features per head. L: latents (latte, "
    "macchiato: of all heads together; luna: per head). M: slots per head. w: window. N: states per channel (s5: per "
    "layer). E: inner width. Words are settings. Equations after a comma give defaults. The sizes of lolcats, lola and "
    "mega are upper bounds. A short convolution that is off by default adds taps-1 numbers per channel.";

// `columns` is the width of a terminal that is too narrow for the whole table; 0: unlimited.
void print_text(int columns) {
  const auto print = [columns](const std::string& text) {
    for (const std::string& line : fold(text, columns > 0 ? columns : std::numeric_limits<int>::max())) {
      std::cout << line << "\n";
    }
  };
  std::cout << (columns > 0 ? narrow_table() : wide_table()).text(columns) << "\n";
  for (const Mechanism* m : mechanisms()) print(m->name + ": " + m->equation);
  std::cout << "\n";
  print(kLegend);
  print("Each has a reference, a chunked form for training and prefill, and (causal ones) a step of one token.");
  print(columns > 0 ? "--wide also shows family, kernels and primitives."
                    : "\"kernel\" names the primitives that a hand-written kernel computes; all else is ATen.");
}

}  // namespace

void add_mechanisms_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("mechanisms", "List all mixers, with paper, equation, state and kernels");
  struct Flags {
    bool json = false, markdown = false, wide = false;
  };
  const auto flags = std::make_shared<Flags>();
  CLI::Option* as_json = command->add_flag("--json", flags->json, "print JSON");
  CLI::Option* as_markdown = command->add_flag("--markdown", flags->markdown, "print the table of README.md");
  CLI::Option* wide = command->add_flag("--wide", flags->wide, "print all columns, however narrow the terminal is");
  as_markdown->excludes(as_json)->excludes(wide);
  as_json->excludes(wide);
  const auto common = add_common_options(*command);
  command->footer("Example:\n  cortado mechanisms --json");
  command->callback([flags, common] {
    common->apply();
    if (flags->json) return print_json();
    if (flags->markdown) return print_markdown();
    const int columns = flags->wide ? 0 : terminal_columns(STDOUT_FILENO);
    print_text(wide_table().width() > columns ? columns : 0);
  });
}

}  // namespace cortado
