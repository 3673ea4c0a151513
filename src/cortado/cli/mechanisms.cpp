// cortado mechanisms: what exists, with paper, equation, state and kernels.
#include <iostream>

#include "cortado/base/error.h"
#include "cortado/base/table.h"
#include "cortado/cli/commands.h"
#include "cortado/cli/common.h"
#include "cortado/mechanisms/registry.h"

namespace cortado {

namespace {

std::string forms(const Mechanism& mechanism) {
  if (!mechanism.causal) return "bidirectional";
  return mechanism.bidirectional ? "causal, bidirectional" : "causal";
}

std::string list(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text.empty() ? "none" : text;
}

Json as_json(const Mechanism& mechanism) {
  Json forms = {"reference", "chunked"};
  if (mechanism.causal) forms.push_back("step");
  Json primitives = Json::object();  // name -> what computes it
  for (const std::string& name : mechanism.primitives) {
    const Primitive* primitive = find_primitive(name);
    primitives[name] = primitive && !primitive->kernel.empty() ? std::string(primitive->kernel) : "ATen";
  }
  return {{"name", mechanism.name},        {"family", mechanism.family},
          {"paper", mechanism.paper},      {"equation", mechanism.equation},
          {"state", mechanism.state},      {"forms", forms},
          {"causal", mechanism.causal},    {"bidirectional", mechanism.bidirectional},
          {"primitives", primitives},      {"kernel", kernels_of(mechanism)},
          {"examples", mechanism.examples}};
}

void print_json() {
  Json all = Json::array();
  for (const Mechanism* mechanism : mechanisms()) all.push_back(as_json(*mechanism));
  std::cout << all.dump(2) << std::endl;
}

// The rows of README.md's table.
void print_markdown() {
  Table table({"mixer", "forms", "state a layer (floats)", "source"});
  for (const Mechanism* m : mechanisms()) table.add_row({concat("`", m->name, "`"), forms(*m), m->state, m->paper});
  std::cout << table.markdown();
}

void print_text() {
  Table table({"mixer", "family", "forms", "kernel", "primitives", "floats of state a sequence", "paper"});
  for (const Mechanism* m : mechanisms()) {
    table.add_row({m->name, m->family, forms(*m), kernels_of(*m), list(m->primitives), m->state, m->paper});
  }
  std::cout << table.text() << "\n";
  for (const Mechanism* m : mechanisms()) std::cout << m->name << ": " << m->equation << "\n";
  std::cout
      << "\nT tokens, D width, H heads, d head size, Hkv key heads, L latents, w window. Each has a reference, a\n"
         "chunked form for training and prefill, and (causal ones) a step of one token. \"kernel\" names the "
         "primitives\n"
         "that a hand-written kernel computes; all else is ATen.\n";
}

}  // namespace

void add_mechanisms_command(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("mechanisms", "list the mixers there are, with paper, equation, state and kernels");
  auto json = std::make_shared<bool>(false), markdown = std::make_shared<bool>(false);
  CLI::Option* as_json = command->add_flag("--json", *json, "as JSON");
  command->add_flag("--markdown", *markdown, "as the table of README.md")->excludes(as_json);
  const auto common = add_common_options(*command);
  command->footer("Example:\n  cortado mechanisms --json");
  command->callback([json, markdown, common] {
    common->apply();
    if (*json) return print_json();
    return *markdown ? print_markdown() : print_text();
  });
}

}  // namespace cortado
