# One test program a layer: src/cortado/LAYER/**/*_test.cpp -> bin/LAYER_tests, every test a ctest entry.
enable_testing()
find_package(GTest REQUIRED)
include(GoogleTest)

foreach(layer base primitives nn mechanisms models tokenizers data train generate cli)
  file(GLOB_RECURSE tests CONFIGURE_DEPENDS src/cortado/${layer}/*_test.cpp)
  if(tests)
    add_executable(${layer}_tests ${tests})
    uses_torch(${layer}_tests)
    target_link_libraries(${layer}_tests PRIVATE cortado GTest::gtest GTest::gtest_main)
    gtest_discover_tests(${layer}_tests DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 120
      # Two properties: gtest_discover_tests takes a list apart at its semicolons.
      PROPERTIES ENVIRONMENT CORTADO_BIN=${CMAKE_BINARY_DIR}/bin/cortado
        ENVIRONMENT_MODIFICATION CORTADO_SOURCE=set:${CMAKE_SOURCE_DIR} TIMEOUT 600)
  endif()
endforeach()
