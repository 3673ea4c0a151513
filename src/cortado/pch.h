// The precompiled header of every file that uses torch. Only slow, stable headers belong here.
#pragma once

#include <ATen/ATen.h>
#include <torch/library.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <tuple>
#include <vector>
