// cortado eval niah: needles in haystacks, asked of several models.
#include <c10/core/InferenceMode.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <map>
#include <set>

#include "cortado/base/error.h"
#include "cortado/base/files.h"
#include "cortado/base/hash.h"
#include "cortado/base/human.h"
#include "cortado/base/signals.h"
#include "cortado/base/table.h"
#include "cortado/cli/commands.h"
#include "cortado/cli/several_models.h"
#include "cortado/evaluate/needles.h"

namespace cortado {

namespace {

struct NiahCommand {
  std::shared_ptr<SeveralModels> models;
  NiahRequest request;
  std::string haystack;
  bool json = false;
};

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
  return std::any_of(command.request.tasks.begin(), command.request.tasks.end(),
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

void run_niah(NiahCommand& command) {
  const c10::InferenceMode inference;
  // Everything that can be refused is refused before a model is read.
  const auto& models = *command.models;
  models.check();
  fail_input_if(needs_essay(command) && command.haystack.empty(),
                "[--haystack] single_2 and single_3 hide the needle in a text: name a file");
  ResultFile file(models.out);
  file.require("command", "eval niah");
  command.request.seed = models.options->common->seed_or(command.request.seed);
  command.request.poll = [&models] { stop_if_interrupted(models); };
  file.require("seed", command.request.seed);
  file.require("plain", command.request.plain);
  const NiahMaterial material = read_material(command, file);
  catch_interrupts();
  const int64_t longest = *std::max_element(command.request.lengths.begin(), command.request.lengths.end());
  for (size_t i = 0; i < models.runs.size(); ++i) {
    const OpenModel opened = open_for(models, i, longest, file);
    ask_needles(command.request, material, {opened.name, opened.model, opened.tokenizer}, file);
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
  niah.add_option("--tasks", command->request.tasks, "single_1, single_2, single_3, separated by commas")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::IsMember({"single_1", "single_2", "single_3"}))
      ->capture_default_str();
  niah.add_option("--lengths", command->request.lengths, "tokens of prompt and answer, separated by commas")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 24))
      ->capture_default_str();
  niah.add_option("--samples", command->request.samples, "questions of each task and length")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  niah.add_option("--batch", command->request.batch, "questions asked at once")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  niah.add_option("--haystack", command->haystack, "the text that single_2 and single_3 hide their needles in");
  niah.add_flag("--plain", command->request.plain, "use no chat template, even for a model that has one");
  niah.add_flag("--json", command->json, "print a JSON list instead of the table");
  niah.callback([command, &eval] {
    refuse_outer_options(eval, "niah");
    keep_first(command->request.tasks);
    keep_first(command->request.lengths);
    run_niah(*command);
  });
}

}  // namespace cortado
