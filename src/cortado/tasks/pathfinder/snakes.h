// Pathfinder's pictures: two long snakes of paddles among short ones, and two marked ends.
#pragma once

#include <array>
#include <vector>

#include "cortado/tasks/draws.h"
#include "cortado/tasks/pathfinder/raster.h"

namespace cortado {

struct SnakeSizes {
  int64_t window = 32, padding = 1;
  double paddle = 2, thickness = 0.5, marker = 1.5;       // length, width, radius
  int64_t contour = 14, distractor = 4, distractors = 5;  // paddles of each kind of snake; how many short ones
  std::vector<int64_t> margins = {1};                     // one of them is drawn
  int64_t seed_distance = 7;
  double continuity = 1;
  double contrast = 2, paddle_contrast = 0.75;  // of snakes; of the long ones' paddles to that
};

struct Paddle {
  Point tail, head;
};
using Snake = std::vector<Paddle>;

struct SnakePicture {
  GreyImage image;  // 0 .. the largest contrast
  std::array<Snake, 2> snakes;
  std::array<Point, 2> markers;  // where one of them begins, and where it or the other one ends
  bool connected = false;
};

SnakePicture draw_snakes(const SnakeSizes& sizes, Draws& draws);

}  // namespace cortado
