// Line charts and heat maps as SVG pictures.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace cortado {

// A line chart. A value that can't be drawn (NaN, infinite, or <= 0 on a logarithmic axis) leaves a gap in its line.
struct LineChart {
  struct Series {
    std::string name;
    std::vector<std::pair<double, double>> points;  // (x, y), in the order they are joined
  };

  std::string title;
  std::string x_label, y_label;
  bool log_x = false;  // base 2: ticks at powers of two
  bool log_y = false;  // base 10: ticks at 1, 2 and 5 times powers of ten; only at powers of ten if the range is large
  std::vector<Series> series = {};

  // Returns a complete SVG file: white background, legend beside the plot, one colour and dash pattern per series.
  // Equal charts give equal texts, byte for byte.
  std::string svg() const;
};

// Matrices side by side with one shared colour scale, from white (`low`) to dark blue (`high`). A value that can't be
// drawn (NaN, infinite) is grey.
struct HeatMap {
  struct Panel {
    std::string title;
    std::vector<std::vector<double>> rows;  // the first row is on top
  };

  std::string title;
  std::string x_label, y_label;
  std::vector<std::string> x_names = {}, y_names = {};  // names of the columns and rows; empty: their indices
  double low = 0, high = 1;
  std::vector<Panel> panels = {};

  // Returns a complete SVG file: white background, four panels per row, the colour scale below. Equal maps give equal
  // texts, byte for byte.
  std::string svg() const;
};

}  // namespace cortado
