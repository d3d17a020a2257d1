# What `cmake --install` puts where: library, header, command, man pages, and what other builds need to
# find them (pkg-config, find_package). Everything may be moved to another prefix after the build.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

if(TUTTI_WHEEL) # pyproject.toml: all below the Python package, with names that need no links
  set_target_properties(tutti PROPERTIES VERSION ${PROJECT_VERSION_MAJOR})
  set_target_properties(tutti_command PROPERTIES INSTALL_RPATH $ORIGIN/../lib)
  install(TARGETS tutti LIBRARY DESTINATION lib NAMELINK_SKIP COMPONENT wheel)
  install(TARGETS tutti_nccl tutti_work LIBRARY DESTINATION lib/tutti NAMELINK_SKIP COMPONENT wheel)
  install(TARGETS tutti_command RUNTIME DESTINATION bin COMPONENT wheel)
  install(FILES include/tutti.h DESTINATION include COMPONENT wheel)
  install(FILES python/tutti-enable.pth DESTINATION ${SKBUILD_PLATLIB_DIR} COMPONENT wheel)
  return()
endif()

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/tutti)
install(TARGETS tutti EXPORT tutti-targets)
install(TARGETS tutti_command)
install(TARGETS tutti_nccl tutti_work LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/tutti NAMELINK_SKIP)
install(FILES include/tutti.h TYPE INCLUDE)
install(FILES LICENSE README.md docs/architecture.md docs/settings.md docs/nccl.md docs/abi.md docs/gpudirect.md
              docs/python.md docs/security.md docs/doctor.schema.json TYPE DOC)
install(FILES docs/man/tutti.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
install(DIRECTORY ${PROJECT_BINARY_DIR}/docs/html TYPE DOC OPTIONAL) # where `docs` was built
install(DIRECTORY ${PROJECT_BINARY_DIR}/docs/man/man3 DESTINATION ${CMAKE_INSTALL_MANDIR} OPTIONAL
        FILES_MATCHING PATTERN "tutti*.3")

install(EXPORT tutti-targets NAMESPACE tutti:: FILE tutti-config.cmake DESTINATION ${package_dir})
write_basic_package_version_file(tutti-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/tutti-config-version.cmake DESTINATION ${package_dir})

file(RELATIVE_PATH TUTTI_PC_PREFIX /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
configure_file(cmake/tutti.pc.in tutti.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/tutti.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

# `cpack -G DEB` makes a package of all that.
set(CPACK_PACKAGE_NAME tutti)
set(CPACK_PACKAGE_CONTACT "The tutti authors <tutti@localhost>")
set(CPACK_PACKAGE_VENDOR tutti)
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Collective communication for GPU clusters and host memory")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_GENERATOR DEB)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${PROJECT_BINARY_DIR}/src)
include(CPack)
