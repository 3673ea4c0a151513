// cortado mechanisms: what exists, with paper, equation and state.
#include <iostream>

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

Json as_json(const Mechanism& mechanism) {
  return {{"name", mechanism.name},
          {"family", mechanism.family},
          {"paper", mechanism.paper},
          {"equation", mechanism.equation},
          {"state", mechanism.state},
          {"forms", {"reference", "chunked", "step"}},
          {"causal", true},
          {"causal", mechanism.causal},
          {"bidirectional", mechanism.bidirectional},
          {"examples", mechanism.examples}};
}

void print_mechanisms(bool json) {
  if (json) {
    Json list = Json::array();
    for (const Mechanism* mechanism : mechanisms()) list.push_back(as_json(*mechanism));
    std::cout << list.dump(2) << std::endl;
    return;
  }
  Table table({"mixer", "family", "forms", "floats of state a sequence", "paper"});
  for (const Mechanism* m : mechanisms()) table.add_row({m->name, m->family, forms(*m), m->state, m->paper});
  std::cout << table.text() << "\n";
  for (const Mechanism* m : mechanisms()) std::cout << m->name << ": " << m->equation << "\n";
  std::cout
      << "\nT tokens, D width, H heads, d head size, Hkv key heads, L latents, w window. Each has a reference, a\n"
         "chunked form for training and prefill, and a step of one token.\n";
}

}  // namespace

void add_mechanisms_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("mechanisms", "list the mixers there are, with paper, equation and state");
  auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "as JSON");
  const auto common = add_common_options(*command);
  command->footer("Example:\n  cortado mechanisms --json");
  command->callback([json, common] {
    common->apply();
    print_mechanisms(*json);
  });
}

}  // namespace cortado
