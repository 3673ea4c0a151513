#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "cortado/base/files.h"
#include "cortado/tasks/pathfinder/files.h"
#include "cortado/tasks/pathfinder/snakes.h"
#include "cortado/tasks/registry.h"
#include "cortado/testing/errors.h"
#include "cortado/testing/statistics.h"

namespace cortado {
namespace {

std::unique_ptr<TaskExamples> pathfinder(const std::string& settings) {
  return pathfinder_task().open(parse_json(settings, "test"), "task");
}

double apart(Point a, Point b) { return std::hypot(a.x - b.x, a.y - b.y); }

TEST(Raster, ALineHasItsLengthAndWidth) {
  const Patch patch = draw_line({5, 8}, {15, 8}, 1, 32);
  double sum = 0;
  for (const float value : patch.values) sum += value;
  EXPECT_NEAR(sum, 2 * 10 + 3.14, 2.5);  // the area of a rectangle and two half discs
  GreyImage image(32);
  image.keep_larger(patch, 1);
  EXPECT_GT(image.at(10, 8), 0.9F);
  EXPECT_LT(image.at(10, 11), 0.1F);
  EXPECT_LT(image.at(18, 8), 0.1F);
  EXPECT_FLOAT_EQ(image.highest_with(draw_line({10, 3}, {10, 13}, 1, 32)), 2 * image.at(10, 8));
  for (const Point corner : {Point{0, 0}, Point{31, 31}}) {
    GreyImage edge(32);
    edge.add(draw_line(corner, corner, 2, 32));
    EXPECT_GT(edge.at(int64_t(corner.x), int64_t(corner.y)), 0.9F);
  }
}

// The label agrees with the markers: they are at the ends of one snake, or of two. Snakes are complete and do not
// touch.
TEST(Pathfinder, MarkersAreAtTheEndsThatTheLabelSays) {
  const SnakeSizes sizes;
  const RandomStream stream(7, "test");
  int connected = 0;
  for (int64_t i = 0; i < 200; ++i) {
    Draws draws(stream, i);
    const SnakePicture picture = draw_snakes(sizes, draws);
    connected += picture.connected;
    int same = 0, different = 0;
    for (size_t one = 0; one < 2; ++one) {
      if (apart(picture.markers[0], picture.snakes[one].front().tail) > 1e-9) continue;
      same += apart(picture.markers[1], picture.snakes[one].back().head) < 1e-9;
      different += apart(picture.markers[1], picture.snakes[1 - one].back().head) < 1e-9;
    }
    EXPECT_EQ(same, picture.connected);
    EXPECT_EQ(different, !picture.connected);
    for (const Snake& snake : picture.snakes) {
      ASSERT_EQ(snake.size(), 14u);
      for (size_t p = 0; p < snake.size(); ++p) {
        EXPECT_NEAR(apart(snake[p].tail, snake[p].head), 2, 1e-6);
        EXPECT_LE(apart(snake[p > 0 ? p - 1 : p].head, snake[p].tail), 2 + 1e-6) << "a gap of two margins";
      }
    }
    for (const Paddle& left : picture.snakes[0]) {
      for (const Paddle& right : picture.snakes[1]) EXPECT_GT(apart(left.head, right.head), 1.0);
    }
    for (const Point marker : picture.markers) {
      EXPECT_GE(picture.image.at(std::lround(marker.x), std::lround(marker.y)), 0.9F);
    }
  }
  EXPECT_NEAR(connected, 100, 35);
}

// Compares with an image without discs: the discs have the right size, and other pixels change only by the filter's
// ripples.
TEST(Pathfinder, MarkersAreDiscsOfTheirRadius) {
  const RandomStream stream(14, "test");
  SnakeSizes bare;
  bare.marker = 0;
  for (int64_t i = 0; i < 50; ++i) {
    Draws draws(stream, i), again(stream, i);
    const SnakePicture picture = draw_snakes({}, draws), without = draw_snakes(bare, again);
    for (int64_t y = 0; y < 32; ++y) {
      for (int64_t x = 0; x < 32; ++x) {
        const Point pixel{double(x), double(y)};
        const double near = std::min(apart(pixel, picture.markers[0]), apart(pixel, picture.markers[1]));
        if (near < 0.5) {
          EXPECT_GE(picture.image.at(x, y), 0.9F);
        } else if (near > 2.5) {
          EXPECT_NEAR(picture.image.at(x, y), without.image.at(x, y), 0.1) << near << " pixels from a marker";
        }
      }
    }
  }
}

TEST(Pathfinder, AnExamplesLabelIsItsPictures) {
  const auto task = pathfinder(R"({"seed": 3})");
  const RandomStream stream(3, "pathfinder hard 32 validation");
  for (int64_t i = 0; i < 10; ++i) {
    Draws draws(stream, i);
    EXPECT_EQ(task->example(Split::kValidation, i).label, draw_snakes({}, draws).connected);
  }
}

TEST(Pathfinder, HalfAreConnected) { testing::expect_published(*pathfinder("{}")); }

TEST(Pathfinder, PicturesAreAFunctionOfTheSeedAndFillTheBytes) {
  const auto task = pathfinder(R"({"input": "tokens"})");
  const Example it = task->example(Split::kTest, 5);
  EXPECT_EQ(it.tokens, pathfinder(R"({"input": "tokens"})")->example(Split::kTest, 5).tokens);
  EXPECT_NE(it.tokens, task->example(Split::kValidation, 5).tokens);
  EXPECT_EQ(it.tokens.size(), 1024u);
  EXPECT_EQ(*std::max_element(it.tokens.begin(), it.tokens.end()), 255);
  EXPECT_EQ(*std::min_element(it.tokens.begin(), it.tokens.end()), 0);
  const Example numbers = pathfinder("{}")->example(Split::kTest, 5);
  EXPECT_FLOAT_EQ(numbers.numbers[100], float(it.tokens[100]) / 127.5F - 1);
}

// The smallest distance between points of two paddles.
double distance(const Paddle& a, const Paddle& b) {
  constexpr int kPoints = 8;
  const auto at = [](const Paddle& p, int i) {
    const double share = double(i) / kPoints;
    return Point{p.tail.x + share * (p.head.x - p.tail.x), p.tail.y + share * (p.head.y - p.tail.y)};
  };
  double least = 1e9;
  for (int i = 0; i <= kPoints; ++i) {
    for (int j = 0; j <= kPoints; ++j) least = std::min(least, apart(at(a, i), at(b, j)));
  }
  return least;
}

TEST(Pathfinder, LongSnakesDontTouch) {
  const RandomStream stream(11, "test");
  double least = 1e9;
  for (int64_t i = 0; i < 200; ++i) {
    Draws draws(stream, i);
    const SnakePicture picture = draw_snakes({}, draws);
    for (const Paddle& left : picture.snakes[0]) {
      for (const Paddle& right : picture.snakes[1]) least = std::min(least, distance(left, right));
    }
  }
  EXPECT_GT(least, 0.8);
}

// Compares images without discs, with and without short snakes. Short snakes are brighter than long ones by up to a
// third (few of their pixels are fully covered).
TEST(Pathfinder, ShortSnakesAreThereAndBrighter) {
  const RandomStream stream(12, "test");
  SnakeSizes sizes, alone;
  sizes.marker = alone.marker = 0;
  alone.distractors = 0;
  double lit = 0, brighter = 0;
  for (int64_t i = 0; i < 100; ++i) {
    Draws draws(stream, i), again(stream, i);
    const SnakePicture all = draw_snakes(sizes, draws), two = draw_snakes(alone, again);
    const auto highest = [](const GreyImage& image) {
      return double(*std::max_element(image.values.begin(), image.values.end()));
    };
    brighter += highest(all.image) / highest(two.image) / 100;
    for (size_t p = 0; p < all.image.values.size(); ++p) {
      lit += all.image.values[p] > two.image.values[p] + 0.2F ? 0.01 : 0;
    }
  }
  EXPECT_GT(brighter, 1.15);
  EXPECT_LT(brighter, 4.0 / 3);
  EXPECT_GT(lit, 25) << "pixels of a picture";
}

// The mean turn is 0.47 for weights cos²; obstacles raise it to 0.66. Random directions would give 1.4.
TEST(Pathfinder, SnakesGoStraightOn) {
  const RandomStream stream(13, "test");
  double sum = 0, turns = 0;
  for (int64_t i = 0; i < 100; ++i) {
    Draws draws(stream, i);
    const SnakePicture picture = draw_snakes({}, draws);
    for (const Snake& snake : picture.snakes) {
      const auto angle = [&](size_t p) {
        return std::atan2(snake[p].head.y - snake[p].tail.y, snake[p].head.x - snake[p].tail.x);
      };
      for (size_t p = 1; p < snake.size(); ++p, ++turns) {
        sum += std::abs(std::remainder(angle(p) - angle(p - 1), 2 * std::numbers::pi));
      }
    }
  }
  EXPECT_NEAR(sum / turns, 0.66, 0.15);
}

TEST(Pathfinder, FilesOfTheRelease) {
  const TemporaryDirectory folder;
  const std::string small = R"({"examples": 16, "validation_examples": 2, "test_examples": 2, "input": "tokens"})";
  const auto task = pathfinder(small);
  write_pathfinder(*task, folder.path(), 100);
  EXPECT_TRUE(read_file(folder.path() + "/metadata/0.npy").starts_with("imgs/0 sample_0.png 0 "));
  const std::string settings = R"({"input": "tokens", "folder": ")" + folder.path() + "\"}";
  const auto read = pathfinder(settings);
  EXPECT_EQ(read->size(Split::kTrain), 16);
  EXPECT_EQ(read->size(Split::kTest), 2);
  for (const auto& [name, split] : kSplits) {
    const Example wanted = task->example(split, 1), got = read->example(split, 1);
    EXPECT_EQ(got.tokens, wanted.tokens) << name;
    EXPECT_EQ(got.label, wanted.label) << name;
  }
  // Empty images, of which the release has one, are skipped.
  write_file(folder.path() + "/imgs/0/sample_0.png", "");
  EXPECT_EQ(pathfinder(settings)->example(Split::kTrain, 0).tokens, task->example(Split::kTrain, 1).tokens);
  const auto refused = [&] { return testing::error_of([&] { pathfinder(settings)->example(Split::kTrain, 0); }); };
  write_file(folder.path() + "/imgs/0/sample_1.png", "no picture");
  EXPECT_NE(refused().find("is not a PNG"), std::string::npos);
  const std::string png = read_file(folder.path() + "/imgs/0/sample_2.png");
  write_file(folder.path() + "/imgs/0/sample_1.png", png.substr(0, png.size() / 2));
  EXPECT_NE(refused().find("PNG"), std::string::npos);
  write_grey_png(folder.path() + "/imgs/0/sample_1.png", std::vector<uint8_t>(16), 4);
  EXPECT_NE(refused().find("has 4 x 4 pixels"), std::string::npos);
  write_file(folder.path() + "/metadata/0.npy", "\x93NUMPY\x01");
  EXPECT_NE(refused().find("numpy array"), std::string::npos);
  write_file(folder.path() + "/metadata/0.npy", "imgs/0 sample_0.png 0 2\n");
  EXPECT_NE(refused().find("expected \"imgs/BATCH"), std::string::npos);
  EXPECT_NE(testing::error_of([] { pathfinder(R"({"folder": "/nowhere"})"); }).find("lra_release"), std::string::npos);
}

TEST(Pathfinder, LargerPictures) {
  const Example it = pathfinder(R"({"size": 128})")->example(Split::kTrain, 0);
  EXPECT_EQ(it.numbers.size(), 128u * 128u);
  EXPECT_NE(testing::error_of([] { pathfinder(R"({"size": 48})"); }).find("must be 32, 64, 128 or 256"),
            std::string::npos);
}

}  // namespace
}  // namespace cortado
