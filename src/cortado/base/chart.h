// Line charts and heat maps as SVG pictures.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace cortado {

// A number that can't be drawn (NaN, infinite, on a logarithmic axis also <= 0) is left out and breaks its line.
struct LineChart {
  struct Series {
    std::string name;
    std::vector<std::pair<double, double>> points;  // (x, y), in the order they are joined
  };

  std::string title;
  std::string x_label, y_label;
  bool log_x = false;  // base 2: ticks at powers of two
  bool log_y = false;  // base 10: ticks at 1, 2 and 5 times powers of ten, or at these alone where there are many
  std::vector<Series> series = {};

  // A whole SVG file: white background, the legend beside the plot, each series in its own colour and dashes. The same
  // chart is always the same text.
  std::string svg() const;
};

// Matrices beside each other, in one scale of colours from white (`low`) to dark blue (`high`). A number that can't be
// drawn (NaN, infinite) is grey.
struct HeatMap {
  struct Panel {
    std::string title;
    std::vector<std::vector<double>> rows;  // the first row is on top
  };

  std::string title;
  std::string x_label, y_label;
  std::vector<std::string> x_names = {}, y_names = {};  // of columns and rows; empty: their numbers
  double low = 0, high = 1;
  std::vector<Panel> panels = {};

  // A whole SVG file: white background, panels in rows of four, the scale of colours below. The same map is always the
  // same text.
  std::string svg() const;
};

}  // namespace cortado
