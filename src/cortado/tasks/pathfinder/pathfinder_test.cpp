#include "cortado/tasks/pathfinder/pathfinder.h"

#include <gtest/gtest.h>

#include <cmath>

#include "cortado/tasks/pathfinder/snakes.h"
#include "cortado/testing/errors.h"
#include "cortado/testing/statistics.h"

namespace cortado {
namespace {

std::unique_ptr<TaskExamples> pathfinder(const std::string& settings) {
  return pathfinder_examples(from_fields<PathfinderOptions>(parse_json(settings, "test"), "task"));
}

double apart(Point a, Point b) { return std::hypot(a.x - b.x, a.y - b.y); }

TEST(Raster, ALineHasItsLengthAndWidth) {
  const Patch patch = draw_line({5, 8}, {15, 8}, 1, 32);
  double sum = 0;
  for (const float value : patch.values) sum += value;
  EXPECT_NEAR(sum, 2 * 10 + 3.14, 2.5);  // a rectangle and two half discs
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

// The label is what the markers say: both at the ends of one snake, or of two; snakes are whole and don't touch.
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

TEST(Pathfinder, LargerPictures) {
  const Example it = pathfinder(R"({"size": 128})")->example(Split::kTrain, 0);
  EXPECT_EQ(it.numbers.size(), 128u * 128u);
  EXPECT_NE(testing::error_of([] { pathfinder(R"({"size": 48})"); }).find("must be 32, 64, 128 or 256"),
            std::string::npos);
}

}  // namespace
}  // namespace cortado
