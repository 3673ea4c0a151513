#include "cortado/sweep/plan.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <limits>
#include <set>

#include "cortado/base/error.h"
#include "cortado/base/fields.h"
#include "cortado/formats/checksum.h"
#include "cortado/models/config.h"
#include "cortado/models/language_model.h"
#include "cortado/tasks/registry.h"

namespace cortado {
namespace {

constexpr size_t kMostRuns = 100000;

// Applies settings {"a.b": value}.
void apply_all(Json& config, const Json& assignments) {
  for (const auto& [key, value] : assignments.items()) set(config, key, value);
}

// The runs that a file describes, and what a scale can change about them.
struct Space {
  Json set = Json::object(), vary = Json::object(), runs = Json::array({Json::object()}), seeds = Json::array({1U});

  void read(JsonReader& reader) {
    set.update(reader.object("set"));
    const Json more = reader.object("vary");
    for (const auto& [key, values] : more.items()) {
      if (!values.is_array() || values.empty()) reader.fail(concat("\"vary\": \"", key, "\" must be a list of values"));
      vary[key] = values;
    }
    for (auto& [key, list] : {std::pair<const char*, Json*>{"runs", &runs}, {"seeds", &seeds}}) {
      const Json value = reader.any(key);
      if (value.is_null()) continue;
      if (!value.is_array() || value.empty()) reader.fail(concat("\"", key, "\" must be a list"));
      *list = value;
    }
    for (const Json& run : runs) {
      if (!run.is_object()) reader.fail("\"runs\" must be a list of objects");
    }
    for (const Json& seed : seeds) {
      if (!seed.is_number_unsigned()) reader.fail("\"seeds\" must be a list of whole numbers");
    }
  }
};

// Returns every combination of the lists' values (the last key varies fastest) joined to each of `runs`. A key that a
// run sets itself does not vary in it.
std::vector<Json> combinations(const Space& space) {
  std::vector<Json> all(space.runs.begin(), space.runs.end());
  for (const auto& [key, values] : space.vary.items()) {
    std::vector<Json> longer;
    for (const Json& settings : all) {
      for (const Json& value : settings.contains(key) ? Json::array({settings[key]}) : values) {
        longer.push_back(settings);
        longer.back()[key] = value;
      }
    }
    fail_input_if(longer.size() > kMostRuns, "[sweep] more than ", kMostRuns, " runs");
    all = std::move(longer);
  }
  return all;
}

// Returns "gla-64-0.001-s1-5f3a": readable values, and a checksum that distinguishes all runs.
std::string id_of(const Json& settings, const std::vector<std::string>& shown, int64_t seed) {
  std::string words;
  for (const auto& [key, value] : settings.items()) {
    if (std::find(shown.begin(), shown.end(), key) == shown.end()) continue;
    std::string word = value.is_string() ? value.get<std::string>() : value.dump();
    std::replace_if(word.begin(), word.end(), [](char c) { return !std::isalnum(uint8_t(c)) && c != '.'; }, '_');
    words += word.substr(0, 24) + "-";
  }
  Checksum checksum;
  checksum.add(nlohmann::json::parse(settings.dump()).dump());  // sorted keys, so the order does not matter
  return concat(words.substr(0, 100), "s", seed, "-", checksum.hex().substr(0, 6));
}

void find_keys(SweepPlan& plan, const Space& space) {
  const auto add = [](std::vector<std::string>& keys, const Json& settings) {
    for (const auto& [key, value] : settings.items()) {
      if (std::find(keys.begin(), keys.end(), key) == keys.end()) keys.push_back(key);
    }
  };
  bool named = true;
  for (const Json& run : space.runs) {
    add(plan.varied, run);
    named &= run.contains("name");
  }
  add(plan.varied, space.vary);
  if (!plan.match.empty()) {
    for (const Json& run : space.runs) add(plan.varied, run.value("sizes", Json::object()));
    std::erase(plan.varied, "sizes");
    plan.varied.emplace_back("target");
  }
  if (named) plan.shown = {"name"};
  if (!named) plan.shown = plan.varied;
  add(plan.shown, space.vary);
  if (named && !plan.match.empty()) plan.shown.emplace_back("target");
}

const Words<Match>& matches() {
  static const Words<Match> words = {{"state", Match::kState}, {"parameters", Match::kParameters}};
  return words;
}

int64_t tokens_of(const Json& config) {
  if (config.contains("task")) return open_task(config["task"], "task")->shape().length;
  return config.contains("training") ? config["training"].value("context", int64_t{256}) : 256;
}

// Returns the value of `sizes` ({"mixer.window": [8, 16, 32]}: one setting and its values) with which the config comes
// nearest to the target in ratio. Throws InputError unless `sizes` is one setting with a list of values that are valid.
Json matched_size(Match match, const Json& config, const Json& sizes, int64_t target, const std::string& place) {
  const bool one =
      sizes.is_object() && sizes.size() == 1 && sizes.begin().value().is_array() && !sizes.begin().value().empty();
  fail_input_if(!one, "[", place, "] \"sizes\" must be one setting and a list of what it may be, as the sweep matches");
  const std::string key = sizes.begin().key();
  Json best;
  double least = std::numeric_limits<double>::infinity();
  for (const Json& value : sizes.begin().value()) {
    Json tried = config;
    set(tried, key, value);
    const double off = std::abs(std::log(double(measured_size(match, tried, place)) / double(target)));
    if (off < least) {
      least = off;
      best = {{key, value}};
    }
  }
  return best;
}

// Returns every combination for every target, each with the size that "match" picks.
std::vector<Json> matched(const SweepPlan& plan, const Space& space, const std::string& path) {
  std::vector<Json> all = combinations(space);
  if (plan.match.empty()) return all;
  const Match match = value_of(matches(), plan.match, "match");
  std::vector<Json> found;
  for (const Json& settings : all) {
    for (const int64_t target : plan.targets) {
      Json chosen = settings, config = plan.base;
      chosen.erase("sizes");
      apply_all(config, chosen);
      chosen["target"] = target;
      if (settings.contains("sizes")) chosen.update(matched_size(match, config, settings["sizes"], target, path));
      found.push_back(std::move(chosen));
    }
  }
  return found;
}

void read_match(SweepPlan& plan, JsonReader& reader) {
  plan.match = reader.choice("match", {"", "state", "parameters"}, "");
  const Json targets = reader.any("targets");
  if (plan.match.empty() != targets.is_null()) reader.fail("\"match\" and \"targets\" belong together");
  for (const Json& target : targets) {
    if (!target.is_number_unsigned() || target == 0U) reader.fail("\"targets\" must be whole numbers above 0");
    plan.targets.push_back(target.get<int64_t>());
  }
}

void make_runs(SweepPlan& plan, const Space& space, const std::string& path) {
  std::set<std::string> seen;
  find_keys(plan, space);
  for (const Json& settings : matched(plan, space, path)) {
    for (const Json& seed : space.seeds) {
      SweepRun run{id_of(settings, plan.shown, seed.get<int64_t>()), settings, seed.get<int64_t>(), plan.base};
      fail_input_if(!seen.insert(run.id).second, "[", path, "] the run ", run.id, " is there twice");
      Json changes = settings;
      if (!plan.match.empty()) changes.erase("target");  // a column of the table, no setting of the config
      apply_all(run.config, changes);
      set(run.config, "training.seed", run.seed);
      plan.runs.push_back(std::move(run));
    }
  }
}

void read_title(SweepPlan& plan, JsonReader& reader, const std::string& path, const std::string& scale) {
  const std::filesystem::path file = std::filesystem::absolute(path);
  plan.name = (file.parent_path().filename() / file.stem()).string();
  plan.scale = scale;
  plan.about = reader.text("about", "");
  plan.paper = reader.text("paper", "");
  plan.published = reader.any("published");
  if (plan.published.is_null()) plan.published = Json::array();
}

// Finishes reading the file, then reads the changes that it lists for the scale.
void read_scale(JsonReader& reader, const std::string& path, const std::string& scale,
                const std::function<void(JsonReader&)>& read) {
  const Json scales = reader.object("scales");
  reader.finish();
  if (scale.empty()) return;
  std::vector<std::string> known;
  for (const auto& [name, changes] : scales.items()) known.push_back(name);
  fail_input_if(std::find(known.begin(), known.end(), scale) == known.end(), "[", path, "] has no scale \"", scale,
                "\"", known.empty() ? "" : "; it has " + alternatives(known));
  JsonReader changes(scales[scale], concat(path, ".scales.", scale));
  read(changes);
  changes.finish();
}

// The commands that a file describes, and what a scale can change about them.
struct Script {
  Json variables = Json::object(), commands = Json::array();

  void read(JsonReader& reader) {
    variables.update(reader.object("variables"));
    const Json list = reader.any("commands");
    if (list.is_null()) return;
    if (!list.is_array() || list.empty()) reader.fail("\"commands\" must be a list");
    commands = list;
  }
};

void set_variable(Json& variables, const std::string& assignment, const std::string& path) {
  const size_t sign = assignment.find('=');
  const std::string key = assignment.substr(0, sign);
  fail_input_if(sign == std::string::npos || !variables.contains(key), "[--set] expected a variable of ", path,
                "=VALUE", variables.empty() ? "; it has none" : "", ", got \"", assignment, "\"");
  variables[key] = assignment.substr(sign + 1);
}

// Replaces {NAME} in the word by the variable's value. {out} and names of other commands stay, because the folder is
// not known yet.
std::string filled(const std::string& word, const Json& variables, const std::vector<std::string>& names,
                   const std::string& path) {
  std::string text;
  for (size_t at = 0; at < word.size();) {
    const size_t open = std::min(word.find('{', at), word.size());
    text += word.substr(at, open - at);
    if (open == word.size()) break;
    const size_t close = word.find('}', open);
    const std::string name = word.substr(open + 1, close - open - 1);
    const bool later = name == "out" || std::find(names.begin(), names.end(), name) != names.end();
    fail_input_if(close == std::string::npos || (!later && !variables.contains(name)), "[", path,
                  "] \"commands\": nothing is called {", name, "}");
    if (!later) {
      const Json& value = variables[name];
      fail_input_if(value.is_null(), "[", path, "] needs --set ", name, "=...");
      text += value.is_string() ? value.get<std::string>() : value.dump();
    }
    if (later) text += "{" + name + "}";
    at = close + 1;
  }
  return text;
}

SweepPlan read_commands(const Json& file, const std::string& path, const std::string& scale,
                        const std::vector<std::string>& settings) {
  JsonReader reader(file, path);
  SweepPlan plan;
  plan.commands = true;
  plan.metric = "seconds";
  plan.varied = plan.shown = {"step"};
  read_title(plan, reader, path, scale);
  Script script;
  script.read(reader);
  read_scale(reader, path, scale, [&](JsonReader& changes) { script.read(changes); });
  for (const std::string& setting : settings) set_variable(script.variables, setting, path);
  plan.base = {{"variables", script.variables}, {"commands", script.commands}};
  for (Json& command : plan.base["commands"]) {  // known durations do not make it a different sweep
    if (command.is_object()) command.erase("hours");
  }
  script.variables["here"] = std::filesystem::absolute(path).parent_path().string();
  std::vector<std::string> names;
  for (size_t i = 0; i < script.commands.size(); ++i) {
    JsonReader command(script.commands[i], concat(path, ".commands[", i, "]"));
    const std::string name = command.text("name");
    std::vector<std::string> words;
    JsonFields(command).values("command", words, "texts");
    const auto hours = command.optional_number("hours", 0, 1e6);
    command.finish();
    const bool good = !name.empty() && name.find_first_of("/{}.") == std::string::npos && name != "out";
    fail_input_if(!good || std::find(names.begin(), names.end(), name) != names.end() || words.empty(), "[", path,
                  "] \"commands\": each needs a \"name\" of its own and a \"command\"");
    SweepRun run{.id = name, .settings = {{"step", name}}, .seed = 0, .config = {}};
    if (hours) run.config["hours"] = *hours;
    for (const std::string& word : words) run.words.push_back(filled(word, script.variables, names, path));
    names.push_back(name);
    plan.runs.push_back(std::move(run));
  }
  return plan;
}

Json base_config(JsonReader& reader, const std::string& path) {
  Json config = reader.any("config");
  if (config.is_object()) return config;
  if (!config.is_string()) reader.fail("\"config\" must be a config or the path of one");
  return read_json_file((std::filesystem::path(path).parent_path() / config.get<std::string>()).string());
}

}  // namespace

int64_t measured_size(Match match, const Json& config, const std::string& name) {
  Json complete = config;
  if (!complete.contains("vocabulary") && !complete.contains("input")) complete["vocabulary"] = 2;
  complete.erase("head");  // equal for all
  const LanguageModel model(ModelConfig::from_json(complete, name));
  return match == Match::kState ? model.state_bytes(tokens_of(config)) : model.parameter_count();
}

const SweepRun& SweepPlan::run(const std::string& id) const {
  for (const SweepRun& run : runs) {
    if (run.id == id) return run;
  }
  throw InputError(concat("[sweep] there is no run ", id));
}

SweepPlan read_sweep(const std::string& path, const std::string& scale, const std::vector<std::string>& settings) {
  const Json file = read_json_file(path);
  if (file.is_object() && file.contains("commands")) return read_commands(file, path, scale, settings);
  JsonReader reader(file, path);
  SweepPlan plan;
  read_title(plan, reader, path, scale);
  plan.base = base_config(reader, path);
  plan.metric = reader.text("metric", plan.metric);
  plan.higher =
      reader.choice("better", {"higher", "lower"}, plan.metric == "validation_loss" ? "lower" : "higher") == "higher";
  JsonFields json(reader);
  json.values("also", plan.also, "texts");
  json.values("best_over", plan.best_over, "texts");
  json.values("series", plan.series, "texts");
  json.values("x", plan.x, "texts");
  plan.best_seed = reader.choice("over_seeds", {"mean", "best"}, "mean") == "best";
  plan.split = reader.choice("split", {"test", "validation"}, "test");
  read_match(plan, reader);
  Space space;
  space.read(reader);
  read_scale(reader, path, scale, [&](JsonReader& changes) {
    space.read(changes);
    if (!changes.says("targets")) return;
    plan.targets = changes.any("targets").get<std::vector<int64_t>>();
  });
  apply_all(plan.base, space.set);
  for (const std::string& setting : settings) apply_setting(plan.base, setting);
  make_runs(plan, space, path);
  for (const auto& [what, keys] : {std::pair{"best_over", plan.best_over}, {"series", plan.series}}) {
    for (const std::string& key : keys) {
      fail_input_if(std::find(plan.varied.begin(), plan.varied.end(), key) == plan.varied.end(), "[", path, "] \"",
                    what, "\": nothing varies \"", key, "\"");
    }
  }
  return plan;
}

}  // namespace cortado
