/*
 * The control channel: one command a line on standard input, one answer a line on standard output.
 *
 *     set SITE up|down PROPERTY=VALUE...   -> ok        properties of struct line
 *     mtu SITE BYTES                       -> ok
 *     cut SITE 0|1                         -> ok
 *     stats                                -> one JSON object; peaks begin anew
 *
 * What cannot be done is answered with a line that begins with "error".
 */
#include "netemu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

static void print_line(const char *name, struct line *line)
{
    printf("\"%s\":{\"packets\":%lu,\"bytes\":%lu,\"queue_drops\":%lu,\"losses\":%lu,\"reordered\":%lu,"
           "\"duplicates\":%lu,\"queue_peak\":%lu}",
           name, line->packets, line->bytes, line->queue_drops, line->losses, line->reordered, line->duplicates,
           line->queue_peak);
    line->queue_peak = 0;
}

static void print_stats(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    double user = (double)usage.ru_utime.tv_sec + (double)usage.ru_utime.tv_usec / 1e6;
    double system = (double)usage.ru_stime.tv_sec + (double)usage.ru_stime.tv_usec / 1e6;
    printf("{\"cpu_s\":%.3f,\"sites\":{", user + system);
    for (int i = 0; i < site_count; i++) {
        printf("%s\"%s\":{\"oversized\":%lu,", i ? "," : "", sites[i].name, sites[i].oversized);
        print_line("up", &sites[i].up);
        printf(",");
        print_line("down", &sites[i].down);
        printf("}");
    }
    printf("}}\n");
}

/* Sets PROPERTY=VALUE; returns false where it is neither known nor a number. */
static bool set_property(struct line *line, char *assignment)
{
    char *value = strchr(assignment, '='), *end;
    if (value == NULL)
        return false;
    *value++ = '\0';
    double number = strtod(value, &end);
    return end != value && *end == '\0' && line_set(line, assignment, number);
}

static void set(struct site *site, char *rest)
{
    char *direction = strsep(&rest, " ");
    bool up = strcmp(direction, "up") == 0;
    if (!up && strcmp(direction, "down") != 0) {
        printf("error: %s is no direction: up or down\n", direction);
        return;
    }
    for (char *assignment; (assignment = strsep(&rest, " ")) != NULL;)
        if (!set_property(up ? &site->up : &site->down, assignment)) {
            printf("error: %s is no property of a line\n", assignment);
            return;
        }
    printf("ok\n");
}

void control_command(char *line)
{
    char *command = strsep(&line, " ");
    if (strcmp(command, "stats") == 0) {
        print_stats();
        return;
    }
    char *name = strsep(&line, " ");
    struct site *site = name == NULL ? NULL : site_named(name);
    if (site == NULL || line == NULL) {
        printf("error: %s needs the name of a site and a value\n", command);
    } else if (strcmp(command, "set") == 0) {
        set(site, line);
    } else if (strcmp(command, "mtu") == 0) {
        site->mtu = atoi(line);
        printf("ok\n");
    } else if (strcmp(command, "cut") == 0) {
        site->cut = strcmp(line, "1") == 0;
        printf("ok\n");
    } else {
        printf("error: %s is no command\n", command);
    }
}
