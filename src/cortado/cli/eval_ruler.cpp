// cortado eval ruler: evaluates several models on RULER's questions about long texts.
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <map>
#include <set>

#include "cortado/base/files.h"
#include "cortado/base/hash.h"
#include "cortado/base/human.h"
#include "cortado/base/signals.h"
#include "cortado/base/table.h"
#include "cortado/cli/several_models.h"
#include "cortado/evaluate/ruler.h"

namespace cortado {
namespace {

// A file that tasks take their texts from.
struct RulerFile {
  const char* key;      // under which its hash is stored in --out
  const char* missing;  // the error message if a task needs the file and it is not named
  std::string path = {};
};

struct RulerCommand {
  std::shared_ptr<SeveralModels> models;
  RulerRequest request;
  std::map<RulerNeeds, RulerFile> files = {
      {RulerNeeds::kEssay,
       {"essay",
        "[--haystack] single_2, single_3, multikey_1, multivalue, multiquery and own hide their needles in a text: "
        "name a file"}},
      {RulerNeeds::kOwn, {"needles", "[--needles] own hides sentences of yours: name a file of them"}},
      {RulerNeeds::kSquad,
       {"squad", "[--squad] qa_squad needs SQuAD's dev-v2.0.json (rajpurkar.github.io/SQuAD-explorer)"}},
      {RulerNeeds::kHotpotQa,
       {"hotpotqa", "[--hotpotqa] qa_hotpot needs hotpot_dev_distractor_v1.json (hotpotqa.github.io)"}}};
  bool json = false;

  bool needs(RulerNeeds what) const {
    return std::any_of(request.tasks.begin(), request.tasks.end(),
                       [&](const auto& name) { return ruler_kind(name).needs_file(what); });
  }
};

// Normalises the tasks' names. Without --tasks, chooses all tasks whose files are named.
void choose_tasks(RulerCommand& command) {
  for (std::string& name : command.request.tasks) name = ruler_kind(name).name;
  keep_first(command.request.tasks);
  if (!command.request.tasks.empty()) return;
  for (const RulerKind& kind : ruler_kinds()) {
    const bool named = std::all_of(kind.needs.begin(), kind.needs.end(),
                                   [&](RulerNeeds what) { return !command.files.at(what).path.empty(); });
    if (named) command.request.tasks.push_back(kind.name);
  }
}

void print_json(const ResultFile& file, RulerCells cells) {
  Json all = Json::array();
  for (const auto& name : models_in(file)) {
    for (const auto& [column, cell] : cells[name]) {
      const auto count = static_cast<double>(cell.samples);
      all.push_back({{"model", name},
                     {"task", column.first},
                     {"length", column.second},
                     {"samples", cell.samples},
                     {"score", cell.score / count},
                     {"percent", cell.percent()},
                     {"prompt_tokens", static_cast<double>(cell.prompt_tokens) / count},
                     {"state_bytes", cell.state_bytes / count},
                     {"seconds", cell.seconds}});
    }
  }
  std::cout << all.dump() << std::endl;
}

// Adds each model's mean over the tasks at a length; this is RULER's total if all thirteen are there.
void add_means(RulerCells& cells, std::set<RulerColumn>& columns) {
  std::map<int64_t, std::set<std::string>> tasks;
  for (const auto& [task, length] : columns) tasks[length].insert(task);
  for (const auto& [length, names] : tasks) {
    if (names.size() < 2) continue;
    columns.emplace("~ mean", length);  // sorts after all tasks
    for (auto& [model, row] : cells) {
      double total = 0;
      int64_t asked = 0;
      for (const auto& name : names) {
        const auto found = row.find({name, length});
        if (found == row.end()) continue;
        total += found->second.percent() / 100;
        ++asked;
      }
      if (asked == int64_t(names.size())) row[{"~ mean", length}] = {.samples = asked, .score = total};
    }
  }
}

void print_table(const ResultFile& file, RulerCells cells) {
  std::set<RulerColumn> columns;
  for (const auto& [name, row] : cells) {
    for (const auto& [column, cell] : row) columns.insert(column);
  }
  add_means(cells, columns);
  std::vector<std::string> header = {"right, %"};
  for (const auto& [task, length] : columns) {
    header.push_back(concat(task.starts_with("~ ") ? task.substr(2) : task, " ", with_commas(length)));
  }
  Table table(header);
  for (const auto& name : models_in(file)) {
    std::vector<std::string> row = {name};
    for (const auto& column : columns) {
      const RulerCell& cell = cells[name][column];
      row.push_back(cell.samples ? fixed(cell.percent(), 1) : "");
    }
    table.add_row(row);
  }
  std::cout << table.text() << std::flush;
}

RulerMaterial read_material(const RulerCommand& command, ResultFile& file) {
  RulerMaterial material;
  const std::string adjectives = shipped_file("data/words/adjectives.txt"),
                    nouns = shipped_file("data/words/nouns.txt");
  material.words = RulerWords::read(adjectives, nouns);
  file.require("words", hash_text(read_file(adjectives) + read_file(nouns)));
  for (const auto& [needs, source] : command.files) {
    if (!command.needs(needs)) continue;
    if (needs == RulerNeeds::kEssay) material.essay = Essay(read_file(source.path));
    if (needs == RulerNeeds::kOwn) material.own = OwnNeedle::read(source.path);
    if (needs == RulerNeeds::kSquad) material.squad = Documents::squad(source.path);
    if (needs == RulerNeeds::kHotpotQa) material.hotpotqa = Documents::hotpotqa(source.path);
    file.require(source.key, hash_text(read_file(source.path)));
  }
  return material;
}

void run_ruler(RulerCommand& command) {
  const c10::InferenceMode inference;
  // Everything that can be refused is refused before a model is read.
  auto& models = *command.models;
  const Ranks& ranks = Ranks::world();
  ranks.agree([&] {
    models.check();
    choose_tasks(command);
    for (const auto& [needs, source] : command.files) {
      fail_input_if(command.needs(needs) && source.path.empty(), source.missing);
    }
  });
  const auto opened_file = open_results(models.out);
  ResultFile& file = *opened_file;
  RulerMaterial material;
  command.request.seed = models.options->common->seed_or(command.request.seed);
  command.request.poll = [&models] { stop_if_interrupted(models); };
  command.request.ranks = ranks;
  ranks.agree([&] {
    file.require("command", "eval ruler", "eval niah");
    file.require("seed", command.request.seed);
    file.require("plain", command.request.plain);
    material = read_material(command, file);
  });
  catch_interrupts();
  const int64_t longest = *std::max_element(command.request.lengths.begin(), command.request.lengths.end());
  for (size_t i = 0; i < models.runs.size(); ++i) {
    const OpenModel opened = open_for(models, i, longest, file);
    ask_ruler(command.request, material, opened, file);
  }
  if (!ranks.first()) return;
  if (command.json) {
    print_json(file, summed(file));
  } else {
    print_table(file, summed(file));
  }
}

constexpr const char* kRulerFooter =
    R"(RULER's thirteen tasks: texts of --lengths tokens (prompt and answer together), each with a question about it.
Needles: a sentence hides a value under a key, and the question asks for the value.
  single_1                 a number in noise
  single_2, single_3       a number or a UUID in the text of --haystack
  multikey_1               one of four keys there
  multikey_2, multikey_3   one of many keys, among needles only
  multivalue, multiquery   four values of one key, or of four keys
  own                      not RULER's: a number in sentences of yours (--needles, as data/needles/held-out.jsonl)
Other tasks: vt: which variables have a value; cwe, fwe: the most frequent words; qa_squad, qa_hotpot: questions about
one of many documents (--squad, --hotpotqa).
Answers are greedy. An answer's score is the share of the references that occur in it (qa: any of them). Chat models are
asked in their own template. The table shows everything that --out holds, including models of earlier calls.

Examples:
  cortado eval ruler models/smollm2 --lengths 1024 --samples 10
  cortado eval ruler models/smollm2 runs/converted --tasks single_1,vt,cwe --out ruler.jsonl
  cortado eval ruler models/smollm2 --haystack essays.txt --squad dev-v2.0.json --lengths 4096 --samples 500
  cortado eval niah models/smollm2 --lengths 512,1024 --samples 10    (as eval ruler; default task single_1)
  cortado eval niah models/smollm2 --tasks own --haystack essays.txt --needles data/needles/held-out.jsonl)";

void add_ruler_command(CLI::App& eval, const std::string& name, const std::string& about,
                       const std::vector<std::string>& tasks) {
  auto command = std::make_shared<RulerCommand>();
  auto& ruler = *eval.add_subcommand(name, about);
  ruler.footer(kRulerFooter);
  command->request.tasks = tasks;
  command->models = add_several_models(ruler);
  std::vector<std::string> names;
  for (const RulerKind& kind : ruler_kinds()) names.push_back(kind.name);
  ruler.add_option("--tasks", command->request.tasks, joined(names, ", ") + ", separated by commas")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->default_str(tasks.empty() ? "all that the named files allow" : joined(tasks, ","));
  option(ruler, "--lengths", command->request.lengths, "tokens of prompt and answer, separated by commas", kCommas,
         kOneWord, CLI::Range(1, 1 << 24), kShown);
  option(ruler, "--samples", command->request.samples, "questions per task and length", CLI::Range(1, 100000), kShown);
  option(ruler, "--batch", command->request.batch, "questions per batch", CLI::Range(1, 1024), kShown);
  ruler.add_option("--haystack", command->files.at(RulerNeeds::kEssay).path, "the text that needles are hidden in");
  ruler.add_option(
      "--needles", command->files.at(RulerNeeds::kOwn).path,
      "for own: sentences to hide, one JSON object per line: {\"needle\": \"The key of {key} is {value}.\", "
      "\"question\": \"What is the key of {key}?\", \"answer\": \"The key of {key} is\"}");
  ruler.add_option("--squad", command->files.at(RulerNeeds::kSquad).path, "SQuAD's dev-v2.0.json, for qa_squad");
  ruler.add_option("--hotpotqa", command->files.at(RulerNeeds::kHotpotQa).path,
                   "HotpotQA's hotpot_dev_distractor_v1.json, for qa_hotpot");
  ruler.add_flag("--plain", command->request.plain, "use no chat template, even for a model that has one");
  ruler.add_flag("--json", command->json, "print a JSON list instead of the table");
  ruler.callback([command, name, &eval] {
    refuse_outer_options(eval, name);
    keep_first(command->request.lengths);
    run_ruler(*command);
  });
}

}  // namespace

void add_eval_ruler_commands(CLI::App& eval) {
  add_ruler_command(eval, "ruler", "Measure what a model retrieves from long texts: RULER's thirteen tasks", {});
  add_ruler_command(eval, "niah", "Hide needles in haystacks, and measure how many a model finds (RULER)",
                    {"single_1"});
}

}  // namespace cortado
