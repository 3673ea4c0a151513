#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "cortado/base/files.h"
#include "cortado/sweep/claim.h"
#include "cortado/sweep/estimate.h"
#include "cortado/sweep/results.h"
#include "cortado/sweep/run.h"
#include "cortado/testing/errors.h"

namespace cortado {
namespace {

const char* const kFile = R"({
  "config": {"dim": 16, "heads": 1, "layers": 1, "mixer": {"mixer": "gla"}, "feed_forward": {"type": "none"},
             "task": {"name": "mqar", "length": 16, "pairs": 2, "vocabulary": 32, "examples": 64, "test_examples": 16},
             "training": {"batch": 16, "steps": 4, "warmup": 1, "evaluate_every": 2, "dtype": "float32"}},
  "set": {"training.clip": 0.5},
  "vary": {"dim": [16, 32], "training.learning_rate": [0.001, 0.01]},
  "runs": [{"mixer.mixer": "gla"}, {"mixer.mixer": "linear"}],
  "seeds": [1, 2],
  "metric": "accuracy", "best_over": ["training.learning_rate"], "series": ["mixer.mixer"], "x": ["state_bytes"],
  "scales": {"small": {"vary": {"dim": [16]}, "set": {"training.steps": 2}, "seeds": [7]}}
})";

class SweepTest : public ::testing::Test {
 protected:
  SweepTest() { write(kFile); }
  void write(const std::string& text) const { write_file(path(), text); }
  std::string path() const { return folder_.path() + "/sweep.json"; }
  SweepPlan plan(const std::string& scale = "") const { return read_sweep(path(), scale); }
  std::string refused(const std::string& text) const {
    write(text);
    return testing::error_of([&] { plan(); });
  }
  TemporaryDirectory folder_;
};

TEST_F(SweepTest, RunsAreAllCombinations) {
  const SweepPlan all = plan();
  ASSERT_EQ(all.runs.size(), 2u * 2u * 2u * 2u);
  EXPECT_EQ(all.varied, (std::vector<std::string>{"mixer.mixer", "dim", "training.learning_rate"}));
  EXPECT_EQ(all.runs[1].seed, 2);
  EXPECT_EQ(all.runs[1].config["training"]["seed"], 2);
  EXPECT_EQ(all.runs[2].config["training"]["learning_rate"], 0.01);
  EXPECT_EQ(all.runs.back().config["mixer"]["mixer"], "linear");
  EXPECT_EQ(all.runs.back().config["dim"], 32);
  EXPECT_EQ(all.runs.back().config["training"]["clip"], 0.5);
  const SweepPlan small = plan("small");
  ASSERT_EQ(small.runs.size(), 4u);
  EXPECT_EQ(small.runs[0].seed, 7);
  EXPECT_EQ(small.base["training"]["steps"], 2);
  EXPECT_EQ(read_sweep(path(), "small", {"training.steps=3"}).base["training"]["steps"], 3);
}

TEST_F(SweepTest, WhatARunSaysItselfDoesNotVaryInIt) {
  write(R"({"config": {}, "vary": {"dim": [16, 32], "heads": [1, 2]},
            "runs": [{"mixer.mixer": "gla"}, {"mixer.mixer": "gla", "dim": 32, "mixer.key_dim": 64}]})");
  const SweepPlan plan = this->plan();
  ASSERT_EQ(plan.runs.size(), 4u + 2u);
  for (const size_t own : {4U, 5U}) {
    EXPECT_EQ(plan.runs[own].config["dim"], 32);
    EXPECT_EQ(plan.runs[own].config["mixer"]["key_dim"], 64);
    EXPECT_EQ(plan.runs[own].config["heads"], own - 3);
  }
}

TEST_F(SweepTest, WrongFilesAreRefused) {
  EXPECT_NE(testing::error_of([&] { plan("huge"); }).find("has no scale \"huge\"; it has small"), std::string::npos);
  EXPECT_NE(refused(R"({"config": {}, "sedes": [1]})").find("did you mean \"seeds\""), std::string::npos);
  EXPECT_NE(refused(R"({"config": {}, "vary": {"dim": 3}})").find("must be a list of values"), std::string::npos);
  EXPECT_NE(refused(R"({"config": {}, "seeds": [-1]})").find("whole numbers"), std::string::npos);
  EXPECT_NE(refused(R"({"config": {}, "best_over": ["dim"]})").find("nothing varies \"dim\""), std::string::npos);
  EXPECT_NE(refused(R"({"config": {}, "runs": [{"dim": 1}, {"dim": 1}]})").find("is there twice"), std::string::npos);
  EXPECT_NE(refused(R"({"config": 3})").find("\"config\" must be"), std::string::npos);
}

// A row has the better of two rates, judged by its mean over two seeds. One of the seeds failed.
TEST_F(SweepTest, RowsAreTheBestRatesMeanOverSeeds) {
  const SweepPlan all = plan();
  std::vector<Json> results;
  const auto add = [&](size_t run, double accuracy, const char* status = "done") {
    const SweepRun& it = all.runs[run];
    results.push_back({{"id", it.id}, {"settings", it.settings}, {"seed", it.seed}, {"status", status}});
    if (std::string(status) == "done")
      results.back().update(Json{{"accuracy", accuracy}, {"state_bytes", 100.0 * double(run + 1)}});
  };
  add(0, 0.2), add(1, 0.4);                  // gla 16 at 0.001
  add(2, 0.5), add(3, 0, "diverged");        // gla 16 at 0.01
  add(4, 0.9), add(5, 0.7);                  // gla 32 at 0.001
  add(8, 0, "failed"), add(9, 0, "failed");  // linear 16
  const Json rows = sweep_rows(all, results);
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0]["accuracy"], 0.5);
  EXPECT_EQ(rows[0]["best"]["training.learning_rate"], 0.01);
  EXPECT_EQ(rows[0]["failed"], 1);
  EXPECT_DOUBLE_EQ(rows[1]["accuracy"].get<double>(), 0.8);
  EXPECT_NEAR(rows[1]["spread"].get<double>(), 0.2, 1e-12);
  EXPECT_DOUBLE_EQ(rows[1]["state_bytes"].get<double>(), 550);
  EXPECT_FALSE(rows[2].contains("accuracy"));
  EXPECT_EQ(rows[2]["failed"], 2);
  SweepPlan best = all;
  best.best_seed = true;
  EXPECT_EQ(sweep_rows(best, results)[1]["accuracy"], 0.9);
  best.higher = false;
  EXPECT_EQ(sweep_rows(best, results)[0]["accuracy"], 0.2);

  EXPECT_NE(sweep_table(all, rows).text().find("best learning_rate"), std::string::npos);
  EXPECT_NE(sweep_runs_table(all, results).text().find("diverged"), std::string::npos);
  const std::string csv = sweep_csv(all, results);
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 9);
  EXPECT_TRUE(csv.starts_with("mixer.mixer,dim,training.learning_rate,seed,status,accuracy,state_bytes\n")) << csv;
  const auto pictures = sweep_pictures(all, rows);
  ASSERT_TRUE(pictures.contains("state_bytes.svg"));
  EXPECT_NE(pictures.at("state_bytes.svg").find("gla"), std::string::npos);
}

TEST_F(SweepTest, RowsHaveTheMetricsThatStandBesideTheOne) {
  SweepPlan all = plan();
  all.also = {"accuracy_to_16", "accuracy_to_32"};
  std::vector<Json> results;
  for (const size_t run : {0, 1}) {  // the seeds of one setting
    const SweepRun& it = all.runs[run];
    results.push_back({{"id", it.id}, {"settings", it.settings}, {"seed", it.seed}, {"status", "done"}});
    results.back().update(Json{{"accuracy", 0.5}, {"accuracy_to_16", 0.25 + double(run)}});
  }
  results.front()["accuracy_to_32"] = 1;  // the other seed does not have this
  const Json rows = sweep_rows(all, results);
  EXPECT_DOUBLE_EQ(rows[0]["accuracy_to_16"].get<double>(), 0.75);
  EXPECT_FALSE(rows[0].contains("accuracy_to_32"));
  EXPECT_NE(sweep_table(all, rows).text().find("0.7500"), std::string::npos);
}

// A window of w pairs of 16 numbers in each of two layers takes 4 (2 * 2 * 16 (w - 1) + ...) bytes; n slots take 4 * 2
// * 2 * 16 n.
TEST_F(SweepTest, SizesAreThoseNearestToTheTarget) {
  write(R"({"config": {"dim": 16, "heads": 1, "layers": 2, "vocabulary": 8, "mixer": {"mixer": "softmax"},
      "training": {"context": 64}},
    "match": "state", "targets": [1100, 4300],
    "runs": [{"mixer.mixer": "softmax"},
             {"mixer.mixer": "sliding_window", "sizes": {"mixer.window": [2, 5, 9, 17, 33]}}],
    "series": ["mixer.mixer"]})");
  const SweepPlan all = read_sweep(path(), "");
  ASSERT_EQ(all.runs.size(), 4u);
  EXPECT_FALSE(all.runs[0].settings.contains("sizes"));
  EXPECT_EQ(all.runs[2].settings["mixer.window"], 5);
  EXPECT_EQ(all.runs[2].config["mixer"]["window"], 5);
  EXPECT_FALSE(all.runs[2].config.contains("target"));
  EXPECT_EQ(all.runs[3].settings["mixer.window"], 17);
  EXPECT_EQ(all.runs[3].settings["target"], 4300);
  EXPECT_NEAR(double(measured_size(Match::kState, all.runs[2].config, "test")), 4 * 2 * 2 * 16 * 4, 64);
  EXPECT_GT(measured_size(Match::kParameters, all.runs[2].config, "test"), 2 * 4 * 16 * 16);
  EXPECT_NE(refused(R"({"config": {}, "match": "state"})").find("belong together"), std::string::npos);
  EXPECT_NE(refused(R"({"config": {}, "match": "size", "targets": [1]})").find("match"), std::string::npos);
  EXPECT_NE(refused(R"({"config": {"dim": 16, "layers": 1, "mixer": {"mixer": "softmax"}}, "match": "state",
      "targets": [1], "runs": [{"sizes": {"dim": []}}]})")
                .find("\"sizes\" must be"),
            std::string::npos);
}

TEST_F(SweepTest, CommandsWithTheirNames) {
  write(R"({"variables": {"model": null, "n": 3}, "commands": [
      {"name": "first", "command": ["train", "{here}/c.json", "--set", "dim={n}", "--out", "{out}"], "hours": 2},
      {"name": "second", "command": ["eval", "{first}", "--text", "{model}"]}],
    "scales": {"small": {"variables": {"model": "x"}, "commands": [{"name": "only", "command": ["doctor"]}]}}})");
  const SweepPlan all = read_sweep(path(), "", {"model=a b"});
  ASSERT_EQ(all.runs.size(), 2u);
  EXPECT_TRUE(all.commands);
  const auto& words = all.runs[0].words;
  EXPECT_EQ(words[1], std::filesystem::absolute(path()).parent_path().string() + "/c.json");
  EXPECT_EQ(words[3], "dim=3");
  EXPECT_EQ(words[5], "{out}");
  EXPECT_EQ(all.runs[1].words, (std::vector<std::string>{"eval", "{first}", "--text", "a b"}));
  EXPECT_FALSE(all.base["commands"][0].contains("hours")) << "what is known of its time makes no other sweep";
  const auto costs = estimate_commands(all.runs, {});
  EXPECT_EQ(costs.at(0).seconds, 2 * 3600);
  EXPECT_NE(costs.at(1).problem.find("how long"), std::string::npos);
  EXPECT_EQ(read_sweep(path(), "small").runs[0].id, "only");
  EXPECT_NE(testing::error_of([&] { read_sweep(path(), ""); }).find("needs --set model="), std::string::npos);
  EXPECT_NE(testing::error_of([&] { read_sweep(path(), "", {"modle=1"}); }).find("--set"), std::string::npos);
  const auto wrong = [&](const std::string& commands) { return refused("{\"commands\": " + commands + "}"); };
  EXPECT_NE(wrong(R"([{"name": "a", "command": ["x", "{b}"]}])").find("nothing is called {b}"), std::string::npos);
  EXPECT_NE(wrong(R"([{"name": "a", "command": ["x"]}, {"name": "a", "command": ["x"]}])").find("name"),
            std::string::npos);
  EXPECT_NE(wrong(R"([{"name": "../a", "command": ["x"]}])").find("name"), std::string::npos);
  EXPECT_NE(wrong(R"([{"name": "a", "comand": ["x"]}])").find("comand"), std::string::npos);
  EXPECT_NE(wrong("[]").find("must be a list"), std::string::npos);
}

TEST_F(SweepTest, OneOwnerAtATimeAndTheDeadsIsTakenOver) {
  const std::string claim = folder_.path() + "/claim";
  {
    const auto mine = Claim::take(claim);
    ASSERT_TRUE(mine);
    EXPECT_FALSE(Claim::take(claim));
    mine->touch();
  }
  EXPECT_FALSE(std::filesystem::exists(claim));
  const pid_t child = ::fork();
  if (child == 0) {
    const auto its = Claim::take(claim);
    ::_exit(its ? 0 : 1);  // without releasing it
  }
  int status = 1;
  ::waitpid(child, &status, 0);
  ASSERT_EQ(status, 0);
  EXPECT_TRUE(std::filesystem::exists(claim));
  EXPECT_TRUE(Claim::take(claim));
  // A claim of another machine is dead if it has not been touched for long.
  write_file(claim, R"({"host": "elsewhere", "process": 1})");
  EXPECT_FALSE(Claim::take(claim));
  std::filesystem::last_write_time(claim, std::filesystem::file_time_type::clock::now() - std::chrono::seconds(200));
  EXPECT_TRUE(Claim::take(claim));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_.path()), {}), 1) << "nothing is left behind";
}

TEST_F(SweepTest, ARunHasAResultHoweverItEnds) {
  const SweepPlan all = plan("small");
  const SweepPlace place{folder_.path()};
  std::filesystem::create_directories(place.out + "/runs");
  SweepTraining training;
  const Json good = run_one(all, all.runs[0], place, training).value();
  EXPECT_EQ(good["status"], "done");
  EXPECT_EQ(good["steps"], 2);
  EXPECT_EQ(good["tokens"], 2 * 16 * 16);
  EXPECT_EQ(good["unique_tokens"], 2 * 16 * 16);
  EXPECT_GT(good["state_bytes"], 0);
  EXPECT_EQ(read_json_file(place.result(all.runs[0]))["accuracy"], good["accuracy"]);
  SweepRun wrong = all.runs[1];
  wrong.config["training"]["learning_rate"] = 1e30;
  wrong.config["training"]["minimum_rate"] = 0;
  wrong.config["training"]["steps"] = 50;
  EXPECT_EQ(run_one(all, wrong, place, training).value()["status"], "failed") << "such a rate is refused";
  wrong.id = "diverges";
  wrong.config["training"]["learning_rate"] = 1000;
  wrong.config["training"]["clip"] = 0;
  wrong.config["initialization"] = {{"type", "normal"}, {"std", 100}};
  const Json diverged = run_one(all, wrong, place, training).value();
  EXPECT_NE(diverged["status"], "failed") << diverged.dump();
  training.stop = [] { return true; };
  EXPECT_FALSE(run_one(all, all.runs[2], place, training));
  EXPECT_FALSE(std::filesystem::exists(place.result(all.runs[2])));
}

// 4 steps of 16 sequences of 16 tokens; a trial makes as many. The second seed costs as much as the first.
TEST_F(SweepTest, WhatRunsReadAndTake) {
  const SweepPlan all = plan();
  std::vector<SweepRun> runs = {all.runs[0], all.runs[1], all.runs[0], all.runs[0], all.runs[0]};
  apply_setting(runs[2].config, "training.batch=1024");  // more than a trial uses
  runs[3].config["training"]["epochs"] = 3;              // 64 / 16 batches per epoch
  runs[3].config["training"]["accumulate"] = 2;
  runs[4].config["mixer"]["mixer"] = "gal";
  const auto found = estimate_runs(runs, {});
  ASSERT_EQ(found.size(), 5u);
  EXPECT_EQ(found[0].tokens, 4 * 16 * 16);
  EXPECT_GT(found[0].seconds, 0);
  EXPECT_EQ(found[1].seconds, found[0].seconds);
  EXPECT_EQ(found[2].tokens, 4 * 64 * 16) << "an epoch's batch has no more than there are";
  EXPECT_EQ(found[3].tokens, 3 * 64 * 16);
  EXPECT_NE(found[4].problem.find("did you mean"), std::string::npos) << found[4].problem;
  EXPECT_EQ(found[4].tokens, 0);
}

}  // namespace
}  // namespace cortado
