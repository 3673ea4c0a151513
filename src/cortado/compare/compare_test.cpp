#include "cortado/compare/compare.h"

#include <gtest/gtest.h>

#include "cortado/base/error.h"
#include "cortado/mechanisms/registry.h"
#include "cortado/testing/errors.h"

namespace cortado {
namespace {

// The settings of every comparable mixer build it, at the width of configs/compare.json.
TEST(Compare, KnowsSettingsOfEveryMixer) {
  MixerContext context;
  context.dim = 128;
  context.heads = 4;
  context.layers = 4;
  context.rotary = true;
  for (const std::string& name : comparable_mixers()) {
    SCOPED_TRACE(name);
    EXPECT_GT(make_mixer(mixer_settings(name, 128), context, name)->state_bytes(256), 0);
  }
  for (const Mechanism* mechanism : mechanisms()) {
    for (const auto& [name, settings] : mechanism->variants) {
      const Json known = mixer_settings(name, 64), wanted = parse_json(settings, name);
      EXPECT_EQ(known.at("mixer"), mechanism->name);
      for (const auto& [key, value] : wanted.items()) EXPECT_EQ(known.at(key), value) << name;
    }
  }
  EXPECT_EQ(mixer_settings("sliding_window", 64).at("window"), 129);
  EXPECT_NE(testing::error_of([] { mixer_settings("retentio", 64); }).find("did you mean \"retention\""),
            std::string::npos);
}

}  // namespace
}  // namespace cortado
