/* A recording of a machine: a text of lines.
 *
 *   tutti doctor recording 1
 *   # a comment
 *   at sys/class/infiniband            the directory of the lines that follow
 *   fw_ver = 28.39.1002                a file and its text
 *   state = first line
 *   <tab>second line
 *   config : 3:00 1f 0a                bytes that are not 0, by their offset (hexadecimal)
 *   mlx5_0 -> ../../devices/pci0000:15 a link, to what lies in the recording
 *   uverbs0 ! 13                       what could not be opened, and errno
 *   ? nvml.driver = 580.159.03         an answer
 */
#ifndef TUTTI_TOOLS_DOCTOR_RECORDING_H_
#define TUTTI_TOOLS_DOCTOR_RECORDING_H_

#define TUTTI_RECORDING_HEAD  "tutti doctor recording 1"
#define TUTTI_RECORDING_BYTES (8 << 20) /* of a file */
#define TUTTI_RECORDING_TEXT  4096      /* of one file in it, or of a PCI configuration */
#define TUTTI_RECORDING_PATH  512
#define TUTTI_RECORDING_FILES 65536

#endif
