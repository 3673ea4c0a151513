#include "cortado/sweep/results.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <set>

#include "cortado/base/human.h"

namespace cortado {
namespace {

constexpr size_t kMostCurves = 40;  // more lines can't be told apart
constexpr const char* kLoss = "validation_loss";

const std::vector<std::string> kNumbers = {"validation_loss", "loss",   "parameters",    "state_bytes",
                                           "steps",           "tokens", "unique_tokens", "seconds"};

bool better(const SweepPlan& plan, double a, double b) { return plan.higher ? a > b : a < b; }

// Returns the settings whose keys are in `keys` (`with`), or the others.
Json part(const Json& settings, const std::vector<std::string>& keys, bool with) {
  Json chosen = Json::object();
  for (const auto& [key, value] : settings.items()) {
    if ((std::find(keys.begin(), keys.end(), key) != keys.end()) == with) chosen[key] = value;
  }
  return chosen;
}

double mean_of(const std::vector<const Json*>& results, const std::string& key) {
  double sum = 0;
  for (const Json* result : results) sum += result->at(key).get<double>();
  return sum / double(results.size());
}

// Combines the seeds of one setting into a row; null if no seed succeeded.
Json seeds_row(const SweepPlan& plan, const std::vector<const Json*>& results) {
  std::vector<const Json*> good;
  for (const Json* result : results) {
    if ((*result)["status"] == "done") good.push_back(result);
  }
  if (good.empty()) return nullptr;
  std::sort(good.begin(), good.end(), [&](const Json* a, const Json* b) {
    return better(plan, a->at(plan.metric).get<double>(), b->at(plan.metric).get<double>());
  });
  const double first = good.front()->at(plan.metric).get<double>(), last = good.back()->at(plan.metric).get<double>();
  Json row = {{plan.metric, plan.best_seed ? first : mean_of(good, plan.metric)},
              {"spread", std::abs(first - last)},
              {"seeds", good.size()},
              {"failed", results.size() - good.size()}};
  for (const auto* keys : {&kNumbers, &plan.also}) {
    for (const std::string& key : *keys) {
      const bool known =
          std::all_of(good.begin(), good.end(), [&](const Json* result) { return result->contains(key); });
      if (key != plan.metric && known) row[key] = mean_of(good, key);
    }
  }
  return row;
}

std::string label_of(const Json& row, const std::vector<std::string>& keys) {
  std::string label;
  for (const std::string& key : keys) label += (label.empty() ? "" : ", ") + plain(row.value(key, Json()));
  return label.empty() ? "all" : label;
}

// Returns the last part of a setting's name.
std::string short_name(const std::string& key) { return key.substr(key.rfind('.') + 1); }

// Returns the Pareto front of (cost, metric) points: those that are better than every cheaper one.
LineChart::Series front_of(const SweepPlan& plan, std::vector<std::pair<double, double>> points) {
  std::sort(points.begin(), points.end());
  LineChart::Series front{"best at most so large", {}};
  for (const auto& point : points) {
    if (front.points.empty() || better(plan, point.second, front.points.back().second)) front.points.push_back(point);
  }
  return front;
}

LineChart::Series series_of(const Json& result, const std::string& metric) {
  const auto id = result.at("id").get<std::string>();
  LineChart::Series series{id.substr(0, id.rfind('-')), {}};
  const Json curve = result.value("curve", Json::object());
  if (!curve.contains(metric)) return series;
  const auto steps = curve.at("step").get<std::vector<double>>(), values = curve[metric].get<std::vector<double>>();
  for (size_t i = 0; i < std::min(steps.size(), values.size()); ++i) series.points.emplace_back(steps[i], values[i]);
  return series;
}

}  // namespace

Json sweep_rows(const SweepPlan& plan, const std::vector<Json>& results) {
  std::map<std::string, const Json*> known;
  for (const Json& result : results) known[result.at("id").get<std::string>()] = &result;
  // Groups in the plan's order: settings without "best_over", then values of "best_over", then seeds.
  std::vector<std::pair<Json, std::vector<std::pair<Json, std::vector<const Json*>>>>> groups;
  const auto entry = [](auto& list, const Json& key) -> auto& {
    for (auto& [other, value] : list) {
      if (other == key) return value;
    }
    return list.emplace_back(key, typename std::decay_t<decltype(list)>::value_type::second_type{}).second;
  };
  for (const SweepRun& run : plan.runs) {
    const auto found = known.find(run.id);
    if (found == known.end()) continue;
    auto& group = entry(groups, part(run.settings, plan.best_over, false));
    entry(group, part(run.settings, plan.best_over, true)).push_back(found->second);
  }
  Json rows = Json::array();
  for (const auto& [settings, choices] : groups) {
    Json best;
    for (const auto& [choice, seeds] : choices) {
      Json row = seeds_row(plan, seeds);
      if (row.is_null()) continue;
      row["best"] = choice;
      if (best.is_null() || better(plan, row[plan.metric], best[plan.metric])) best = row;
    }
    Json row = settings;
    row.update(best.is_null() ? Json{{"seeds", 0}, {"failed", choices.front().second.size()}} : best);
    rows.push_back(row);
  }
  return rows;
}

Table sweep_table(const SweepPlan& plan, const Json& rows) {
  if (plan.commands) {
    return table_of(rows, {{"step", "/step"}, {"seconds", "/seconds", decimals(1)}, {"failed", "/failed"}});
  }
  const auto pointer = [](const std::string& key) { return "/" + key; };
  std::vector<Column> columns;
  for (const std::string& key : plan.shown) {
    const bool chosen = std::find(plan.best_over.begin(), plan.best_over.end(), key) != plan.best_over.end();
    columns.push_back({chosen ? "best " + short_name(key) : short_name(key), (chosen ? "/best" : "") + pointer(key)});
  }
  columns.push_back({plan.metric, pointer(plan.metric), decimals(4)});
  columns.push_back({"spread", "/spread", decimals(4)});
  for (const std::string& key : plan.also) columns.push_back({key, pointer(key), decimals(4)});
  columns.push_back({"seeds", "/seeds"});
  columns.push_back({"failed", "/failed"});
  const auto whole = [](const Json& value) { return with_commas(std::llround(value.get<double>())); };
  columns.push_back({"parameters", "/parameters", whole});
  columns.push_back({"bytes of state", "/state_bytes", whole});
  columns.push_back({"tokens", "/tokens", whole});
  columns.push_back({"unique", "/unique_tokens", whole});
  columns.push_back({"seconds", "/seconds", decimals(1)});
  return table_of(rows, columns);
}

Table sweep_runs_table(const SweepPlan& plan, const std::vector<Json>& results) {
  std::vector<Column> columns;
  for (const std::string& key : plan.shown) columns.push_back({short_name(key), "/settings/" + key});
  columns.push_back({"seed", "/seed"});
  columns.push_back({plan.metric, "/" + plan.metric, decimals(4)});
  columns.push_back({"steps", "/steps"});
  columns.push_back({"seconds", "/seconds", decimals(1)});
  columns.push_back({"ended", "/status"});
  columns.push_back({"", "/message"});
  Json all = Json::array();
  for (const Json& result : results) all.push_back(result);
  return table_of(all, columns);
}

std::string sweep_csv(const SweepPlan& plan, const std::vector<Json>& results) {
  std::vector<std::string> keys;
  for (const std::string& key : plan.varied) keys.push_back("/settings/" + key);
  for (const char* key : {"seed", "status"}) keys.push_back(std::string("/") + key);
  std::set<std::string> numbers;
  for (const Json& result : results) {
    for (const auto& [key, value] : result.items()) {
      if (value.is_number() && key != "seed") numbers.insert("/" + key);
    }
  }
  keys.insert(keys.end(), numbers.begin(), numbers.end());
  const auto cell = [](std::string text) {
    if (text.find_first_of(",\"\n") == std::string::npos) return text;
    for (size_t at = 0; (at = text.find('"', at)) != std::string::npos; at += 2) text.insert(at, 1, '"');
    return "\"" + text + "\"";
  };
  std::string csv;
  for (const std::string& key : keys) csv += (csv.empty() ? "" : ",") + cell(key.substr(key.rfind('/') + 1));
  for (const Json& result : results) {
    std::string line;
    for (size_t i = 0; i < keys.size(); ++i) {
      const Json::json_pointer place(keys[i]);
      line += (i > 0 ? "," : "") + (result.contains(place) ? cell(plain(result[place])) : "");
    }
    csv += "\n" + line;
  }
  return csv + "\n";
}

std::map<std::string, std::string> sweep_pictures(const SweepPlan& plan, const Json& rows) {
  std::map<std::string, std::string> pictures;
  for (const std::string& x : plan.x) {
    LineChart chart;
    chart.title = plan.about;
    chart.x_label = x == "state_bytes" ? "state, bytes" : short_name(x);
    chart.y_label = plan.metric;
    chart.log_x = true;
    std::vector<std::string> names;
    std::map<std::string, std::vector<std::pair<double, double>>> lines;
    std::vector<std::pair<double, double>> all;
    for (const Json& row : rows) {
      if (!row.contains(plan.metric) || !row.contains(x) || !row[x].is_number()) continue;
      const std::string name = label_of(row, plan.series);
      if (!lines.contains(name)) names.push_back(name);
      all.emplace_back(row[x].get<double>(), row[plan.metric].get<double>());
      lines[name].push_back(all.back());
    }
    if (all.empty()) continue;
    for (const std::string& name : names) {
      std::sort(lines[name].begin(), lines[name].end());
      chart.series.push_back({name, lines[name]});
    }
    if (x == "state_bytes" && names.size() > 1) chart.series.push_back(front_of(plan, all));
    pictures[short_name(x) + ".svg"] = chart.svg();
  }
  return pictures;
}

Json curve_of(const std::string& folder, const std::string& metric) {
  Json curve = Json::object();
  std::ifstream file(folder + "/metrics.jsonl");
  for (std::string line; std::getline(file, line);) {
    const Json entry = Json::parse(line, nullptr, false);
    const auto has = [&](const std::string& key) { return entry.contains(key) && entry[key].is_number(); };
    if (!entry.is_object() || !has("step") || !has(kLoss)) continue;
    curve["step"].push_back(entry["step"]);
    curve[kLoss].push_back(entry[kLoss]);
    if (metric != kLoss && has(metric)) curve[metric].push_back(entry[metric]);
  }
  return curve;
}

std::string sweep_curves(const SweepPlan& plan, const std::vector<Json>& results) {
  for (const std::string& metric : {plan.metric, std::string(kLoss)}) {
    LineChart chart{.title = plan.about, .x_label = "step", .y_label = metric};
    for (const Json& result : results) {
      auto series = series_of(result, metric);
      if (!series.points.empty() && chart.series.size() < kMostCurves) chart.series.push_back(std::move(series));
    }
    if (!chart.series.empty()) return chart.svg();
  }
  return "";
}

}  // namespace cortado
