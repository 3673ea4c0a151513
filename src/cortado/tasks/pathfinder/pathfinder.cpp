// Pathfinder of Long Range Arena: do two marked ends belong to one snake? (README.md)
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "cortado/base/error.h"
#include "cortado/tasks/pathfinder/files.h"
#include "cortado/tasks/pathfinder/snakes.h"
#include "cortado/tasks/registry.h"

namespace cortado {
namespace {

struct PathfinderOptions {
  int64_t size = 32;              // pixels per side: 32, 64, 128 ("Path-X") or 256
  std::string level = "hard";     // long snakes have 14 paddles; "medium" 9, "easy" 6
  std::string input = "numbers";  // (x / 255 - 0.5) / 0.5; or "tokens": the bytes
  int64_t examples = 160000, validation_examples = 20000, test_examples = 20000;
  int64_t seed = 0;
  std::string folder;  // of existing images (files.h), split 8 to 1 to 1; empty: images are drawn

  void fields(JsonFields& json) {
    json.text("folder", folder);
    json.integer("size", size, 32, 256);
    json.fail_if(size != 32 && size != 64 && size != 128 && size != 256, "\"size\" must be 32, 64, 128 or 256, got ",
                 size);
    json.choice("level", level, {"easy", "medium", "hard"});
    json.choice("input", input, {"numbers", "tokens"});
    json.integer("examples", examples, 1, kMostExamples);
    json.integer("validation_examples", validation_examples, 1, kMostExamples);
    json.integer("test_examples", test_examples, 1, kMostExamples);
    json.integer("seed", seed, 0, std::numeric_limits<int64_t>::max());
  }
};

// The sizes of the public data. A short snake has a third of a long one's paddles; the number of short snakes follows
// from their total number of paddles, `short_paddles`.
SnakeSizes sizes_of(const PathfinderOptions& options) {
  SnakeSizes sizes;
  int64_t short_paddles = 20;
  sizes.contour = options.level == "hard" ? 14 : options.level == "medium" ? 9 : 6;
  sizes.window = options.size;
  if (options.size > 32) {
    sizes.paddle = 5;
    sizes.continuity = 1.8;
    sizes.contrast = 1;
  }
  if (options.size == 64) {
    sizes.thickness = 1, sizes.marker = 2.5, sizes.seed_distance = 12, sizes.contrast = 0.8;
    short_paddles = 22;
  } else if (options.size == 128) {
    sizes.thickness = 1.5, sizes.marker = 3, sizes.seed_distance = 20, sizes.contrast = 0.9;
    sizes.margins = {2, 3};
    short_paddles = 35;
  } else if (options.size == 256) {
    sizes.thickness = 2, sizes.marker = 5, sizes.seed_distance = 27;
    sizes.margins = {3};
    sizes.padding = 22;
    short_paddles = 30;
  }
  sizes.distractor = sizes.contour / 3;
  sizes.distractors = short_paddles / sizes.distractor;
  return sizes;
}

// The common parts of drawn and read images.
class PathfinderTask : public TaskExamples {
 public:
  explicit PathfinderTask(PathfinderOptions options) : options_(std::move(options)) {}

  TaskShape shape() const override { return picture_shape(options_.input, options_.size * options_.size, 2); }
  std::unique_ptr<Scores> scores(Split) const override { return class_scores(); }
  std::vector<Published> published() const override { return {{"connected", 0.5, 0.035}}; }
  std::string drawn(const Example& example) const override {
    return drawn_image(example, options_.size) + (example.label == 1 ? "connected\n" : "not connected\n");
  }

 protected:
  PathfinderOptions options_;
};

class DrawnPathfinder : public PathfinderTask {
 public:
  explicit DrawnPathfinder(const PathfinderOptions& options) : PathfinderTask(options), sizes_(sizes_of(options)) {
    for (const auto& [name, split] : kSplits) {
      streams_.emplace_back(uint64_t(options.seed), concat("pathfinder ", options.level, " ", options.size, " ", name));
    }
  }

  int64_t size(Split split) const override {
    return std::array{options_.examples, options_.validation_examples, options_.test_examples}[size_t(split)];
  }
  // Stretches the darkest pixel to 0 and the lightest to 255.
  Example example(Split split, int64_t index) const override {
    Draws draws(streams_[size_t(split)], index);
    const SnakePicture picture = draw_snakes(sizes_, draws);
    const auto [low, high] = std::minmax_element(picture.image.values.begin(), picture.image.values.end());
    Example example;
    example.label = picture.connected;
    for (const float value : picture.image.values) {
      add_pixel(example, options_.input, std::lround(255 * (value - *low) / (*high - *low)));
    }
    return example;
  }

  Json statistics(int64_t count) const override;

 private:
  SnakeSizes sizes_;
  std::vector<RandomStream> streams_;
};

Json DrawnPathfinder::statistics(int64_t count) const {
  count = std::min(count, options_.examples);
  double connected = 0, paddles = 0, light = 0, apart = 0;
  for (int64_t i = 0; i < count; ++i) {
    Draws draws(streams_[0], i);
    const SnakePicture picture = draw_snakes(sizes_, draws);
    connected += picture.connected;
    paddles += double(picture.snakes[0].size() + picture.snakes[1].size()) / 2;
    light += double(std::count_if(picture.image.values.begin(), picture.image.values.end(),
                                  [](float value) { return value > 0.5F; })) /
             double(picture.image.values.size());
    const auto& [a, b] = picture.markers;
    apart += std::hypot(a.x - b.x, a.y - b.y);
  }
  const auto mean = [&](double sum) { return sum / double(count); };
  return {{"connected", mean(connected)},
          {"paddles", mean(paddles)},
          {"light_pixels", mean(light)},
          {"markers_apart", mean(apart)}};
}

class ReadPathfinder : public PathfinderTask {
 public:
  explicit ReadPathfinder(const PathfinderOptions& options)
      : PathfinderTask(options), files_(pathfinder_files(options.folder)) {
    fail_input_if(files_.size() < 10, "[", options.folder, "] has ", files_.size(),
                  " pictures; a tenth of them is for validation and a tenth to test");
  }

  int64_t size(Split split) const override {
    const auto all = int64_t(files_.size()), tenth = all / 10;
    return split == Split::kTrain ? all - 2 * tenth : tenth;
  }
  Example example(Split split, int64_t index) const override {
    const int64_t before = split == Split::kTrain ? 0 : size(Split::kTrain) + (split == Split::kTest ? all_tenth() : 0);
    const PathfinderFile& file = files_[size_t(before + index)];
    Example example;
    example.label = file.connected;
    for (const uint8_t pixel : read_grey_png(file.path, options_.size)) add_pixel(example, options_.input, pixel);
    return example;
  }
  Json statistics(int64_t count) const override {
    count = std::min(count, size(Split::kTrain));
    double connected = 0;
    for (int64_t i = 0; i < count; ++i) connected += files_[size_t(i)].connected;
    return {{"connected", connected / double(count)}};
  }

 private:
  int64_t all_tenth() const { return int64_t(files_.size()) / 10; }
  std::vector<PathfinderFile> files_;
};

}  // namespace

TaskKind pathfinder_task() {
  const auto open = [](const Json& json, const std::string& place) -> std::unique_ptr<TaskExamples> {
    const auto options = from_fields<PathfinderOptions>(json, place);
    if (options.folder.empty()) return std::make_unique<DrawnPathfinder>(options);
    return std::make_unique<ReadPathfinder>(options);
  };
  return {"pathfinder", "Long Range Arena: are two marked ends those of one snake, pixel by pixel", open,
          write_pathfinder};
}

}  // namespace cortado
